use proptest::prelude::*;
use serde_json::Value;

use super::*;

#[test]
fn pointers_of_the_rfc() {
    let json = r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8,"\u006f":9}"#;
    for (text, expected) in [
        ("", Some(json)),
        ("/foo", Some(r#"["bar","baz"]"#)),
        ("/foo/0", Some("\"bar\"")),
        ("/", Some("0")),
        ("/a~1b", Some("1")),
        ("/c%d", Some("2")),
        ("/e^f", Some("3")),
        ("/g|h", Some("4")),
        ("/i\\j", Some("5")),
        ("/k\"l", Some("6")),
        ("/ ", Some("7")),
        ("/m~0n", Some("8")),
        ("/o", Some("9")),
        ("foo", None),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/01", None),
        ("/foo/+1", None),
        ("/foo/0/x", None),
        ("/bar", None),
    ] {
        assert_eq!(pointer(json, text), expected, "{text:?}");
    }
}

/// A key that is written as another one reads.
#[test]
fn keys_are_compared_by_what_they_mean() {
    // The keys are two backslashes and one, and the other way around.
    let json = r#"{"\\\\":2,"\\":1}"#;
    assert_eq!(
        (pointer(json, r"/\"), pointer(json, r"/\\"), pointer(json, r"/\\\\")),
        (Some("1"), Some("2"), None)
    );
    let json = r#"{"\\":1,"\\\\":2}"#;
    assert_eq!(
        (pointer(json, r"/\"), pointer(json, r"/\\"), pointer(json, r"/\\\\")),
        (Some("1"), Some("2"), None)
    );
}

#[test]
fn answers_have_no_space_around_them() {
    let json = " { \"a\" : [ 1 , { \"b\" : null } ] , \"c\" : -1.5e+3 } \n";
    assert_eq!(pointer(json, ""), Some(json.trim()));
    assert_eq!(
        pointer_many(json, &["/a/1/b", "/c", "/a/0", "/d"]),
        [Some("null"), Some("-1.5e+3"), Some("1"), None]
    );
}

#[test]
fn each_element_of_an_array() {
    let json = r#"{"a":[{"b":["x","y"]},{"c":1},{"b":["z"]}],"*":{"*":1}}"#;
    assert_eq!(pointer_each(json, "/a/*/b/*"), ["\"x\"", "\"y\"", "\"z\""]);
    assert_eq!(pointer_each(json, "/a/0/b/*"), ["\"x\"", "\"y\""]);
    assert_eq!(pointer_each(json, "/*/*"), ["1"]);
    assert_eq!(pointer_each(json, "/a/1"), [r#"{"c":1}"#]);
    assert_eq!(pointer_each("[]", "/*"), [""; 0]);
    assert_eq!(pointer_each(json, "a"), [""; 0]);
}

#[test]
fn scalars_are_indexed_under_their_text() {
    for (json, expected) in [
        ("\"a\"", Some("a")),
        (r#""a\nb""#, Some("a\nb")),
        ("1.50", Some("1.50")),
        ("true", Some("true")),
        ("null", None),
        ("{}", None),
        ("[]", None),
        ("", None),
    ] {
        assert_eq!(scalar(json).as_deref(), expected, "{json}");
    }
    assert_eq!(string("1"), None);
}

#[test]
fn pointers_are_recognised() {
    for good in ["", "/", "/a/b", "/a~0b~1c", "/*"] {
        assert!(is_pointer(good), "{good:?}");
    }
    for bad in ["a", "/a~", "/a~2", "#/a"] {
        assert!(!is_pointer(bad), "{bad:?}");
    }
}

fn keys() -> impl Strategy<Value = String> {
    prop_oneof!["[a-c]", "[0-2]", Just(String::new()), "[~/*\"\\\\ é\u{1f600}\n]{1,3}", any::<String>(),]
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has no NaN", |number| number.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[{}\\[\\],:\"\\\\]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(keys(), inner, 0..6).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

/// All pointers into a value.
fn pointers(value: &Value, here: &str, all: &mut Vec<String>) {
    all.push(here.to_owned());
    match value {
        Value::Array(array) => {
            for (index, each) in array.iter().enumerate() {
                pointers(each, &format!("{here}/{index}"), all);
            }
        }
        Value::Object(object) => {
            for (key, each) in object {
                pointers(each, &format!("{here}/{}", key.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, ..ProptestConfig::default() })]

    #[test]
    fn a_pointer_finds_what_value_pointer_finds(
        value in values(),
        other in prop::collection::vec(keys(), 0..4),
        pretty in any::<bool>(),
    ) {
        let json = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        // What `serde_json` reads back is what counts: numbers may differ from what it wrote.
        let value: Value = serde_json::from_str(&json).unwrap();
        let mut all = Vec::new();
        pointers(&value, "", &mut all);
        all.push(other.iter().fold(String::new(), |all, key| format!("{all}/{key}")));
        all.push(other.concat());
        for each in &all {
            let found = pointer(&json, each).map(|text| serde_json::from_str::<Value>(text).unwrap());
            prop_assert_eq!(found.as_ref(), value.pointer(each), "{:?}", each);
            prop_assert_eq!(found.is_some(), pointer(&json, each).is_some_and(|text| text.trim() == text));
        }
        let many: Vec<_> = pointer_many(&json, &all);
        prop_assert_eq!(many, all.iter().map(|each| pointer(&json, each)).collect::<Vec<_>>());
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>(), json in "[\\[\\]{}:,\"\\\\a0 é]{0,40}", path in "[/a0*~]{0,6}") {
        for each in [&text, &json] {
            pointer(each, &path);
            pointer_each(each, &path);
            members(each).for_each(drop);
            scalar(each);
        }
    }
}
