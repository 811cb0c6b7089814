use proptest::prelude::*;

use super::*;

fn labels() -> Labels {
    Labels::new([("app", "web"), ("tier", ""), ("example.dev/stage", "Prod.1")])
}

#[test]
fn selectors_read_as_kubernetes_reads_them() {
    for (text, normal, matches) in [
        ("", "", true),
        ("  ", "", true),
        ("app=web", "app=web", true),
        ("app==web", "app=web", true),
        (" app = web , tier ", "app=web,tier", true),
        ("app=db", "app=db", false),
        ("app!=db", "app!=db", true),
        ("none!=db", "none!=db", true),
        ("app!=web", "app!=web", false),
        ("app in (web)", "app=web", true),
        ("app in (web,db, web)", "app in (db,web)", true),
        ("app in(db)", "app=db", false),
        ("app notin (db,x)", "app notin (db,x)", true),
        ("none notin (db)", "none!=db", true),
        ("app notin (web)", "app!=web", false),
        ("tier=", "tier=", true),
        ("tier in ()", "tier=", true),
        ("app in (web,)", "app in (,web)", true),
        ("tier!=", "tier!=", false),
        ("tier", "tier", true),
        ("none", "none", false),
        ("!none", "!none", true),
        ("! app", "!app", false),
        ("example.dev/stage=Prod.1", "example.dev/stage=Prod.1", true),
        ("in=notin", "in=notin", false),
        ("notin in (in)", "notin=in", false),
        ("b,a", "a,b", false),
        ("app=web,app=web", "app=web", true),
        ("app=web,app=db", "app=db,app=web", false),
    ] {
        let selector: Selector = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(selector.to_string(), normal, "{text:?}");
        assert_eq!(selector.matches_labels(&labels()), matches, "{text:?}");
        assert_eq!(selector.to_string().parse(), Ok(selector), "{text:?}");
    }
}

#[test]
fn others_are_refused_with_the_reason() {
    let long = "a".repeat(64);
    for (text, reason) in [
        ("app=web,", "it ends with a comma"),
        (",", "expected a label key"),
        ("=web", "expected a label key"),
        ("app web", "expected =, ==, !=, in or notin, found web"),
        ("app=(web)", "expected a value, found ("),
        ("app in web", "expected ( and values"),
        ("app in (web", "expected a comma or ), found the end"),
        ("app in (a b)", "expected a comma or ), found b"),
        ("app=web)", "expected a comma or the end, found )"),
        ("!", "expected a label key"),
        ("!app=web", "expected a comma or the end, found ="),
        ("a>1", "'>' is no operator of label selectors"),
        ("a/b/c", "\"a/b/c\" is no label key"),
        ("A.dev/b", "\"A.dev/b\" is no label key"),
        ("-a", "\"-a\" is no label key"),
        ("a=-b", "\"-b\" is no label value"),
        ("é=b", "\"é\" is no label key"),
        (&long, "is no label key"),
        (&format!("a={long}"), "is no label value"),
    ] {
        let error = text.parse::<Selector>().unwrap_err().to_string();
        assert!(error.contains(reason), "{text:?}: {error}");
    }
    let many: Vec<_> = (0..=MAX_REQUIREMENTS).map(|index| format!("a{index}")).collect();
    assert!(many.join(",").parse::<Selector>().is_err());
    assert!(format!("a in ({})", many.join(",")).parse::<Selector>().is_err());
}

#[test]
fn match_labels_are_equalities() {
    let selector = Selector::match_labels([("tier", ""), ("app", "web")]).unwrap();
    assert_eq!(selector.to_string(), "app=web,tier=");
    let both = selector.and("!none".parse().unwrap());
    assert_eq!(both.to_string(), "!none,app=web,tier=".parse::<Selector>().unwrap().to_string());
    assert!(both.matches_labels(&labels()));
    assert!(Selector::match_labels([("a b", "c")]).is_err());
    assert!(Selector::match_labels([("a", "b c")]).is_err());
    assert!(Selector::everything().is_everything());
}

#[test]
fn wider_selectors_cover_narrower_ones() {
    for (wide, narrow, covers) in [
        ("", "a=b", true),
        ("a", "a=b", true),
        ("a", "a in (b,c)", true),
        ("a in (b,c)", "a=b", true),
        ("a=b", "a in (b,c)", false),
        ("a!=c", "a=b", true),
        ("a!=c", "!a", true),
        ("a!=c", "a notin (c,d)", true),
        ("a notin (c,d)", "a!=c", false),
        ("a", "!a", false),
        ("a=b", "a=b,c=d", true),
        ("a=b,c=d", "a=b", false),
        ("a=b", "c=b", false),
    ] {
        let [wide_selector, narrow_selector] = [wide, narrow].map(|text| text.parse::<Selector>().unwrap());
        assert_eq!(wide_selector.covers(&narrow_selector), covers, "{wide:?} and {narrow:?}");
    }
}

fn some_labels() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let pairs = prop::sample::subsequence(vec!["a", "b", "x.dev/c", "in"], 0..=4);
    pairs.prop_flat_map(|keys| {
        let values = prop::collection::vec(prop::sample::select(vec!["", "a", "b", "in"]), keys.len());
        values.prop_map(move |values| keys.iter().copied().zip(values).collect())
    })
}

fn requirements() -> impl Strategy<Value = String> {
    let key = prop::sample::select(vec!["a", "b", "x.dev/c", "in"]);
    let values = prop::collection::vec(prop::sample::select(vec!["", "a", "b", "in"]), 1..4);
    let operators = prop::sample::select(vec!["=", "==", "!=", " in ", " notin ", "", "!"]);
    (key, operators, values).prop_map(|(key, operator, values)| match operator {
        "" => key.to_owned(),
        "!" => format!("!{key}"),
        " in " | " notin " => format!("{key}{operator}({})", values.join(" , ")),
        _ => format!("{key}{operator}{}", values[0]),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, ..ProptestConfig::default() })]

    #[test]
    fn a_normal_form_selects_the_same_and_is_stable(
        parts in prop::collection::vec(requirements(), 0..4),
        others in prop::collection::vec(requirements(), 0..3),
        labels in some_labels(),
    ) {
        let selector: Selector = parts.join(",").parse().unwrap();
        let again: Selector = selector.to_string().parse().unwrap();
        prop_assert_eq!(&again, &selector);
        prop_assert_eq!(again.to_string(), selector.to_string());
        let labels = Labels::new(labels);
        let one_by_one = parts.iter().all(|part| part.parse::<Selector>().unwrap().matches_labels(&labels));
        prop_assert_eq!(selector.matches_labels(&labels), one_by_one);
        let other: Selector = others.join(",").parse().unwrap();
        if other.covers(&selector) && selector.matches_labels(&labels) {
            prop_assert!(other.matches_labels(&labels), "{} does not cover {}", other, selector);
        }
        let json = serde_json::to_string(&selector).unwrap();
        prop_assert_eq!(serde_json::from_str::<Selector>(&json).unwrap(), selector);
    }

    #[test]
    fn no_text_makes_it_panic(text in any::<String>(), likely in "[a(),!= <>/in]{0,24}") {
        for each in [text, likely] {
            if let Ok(selector) = each.parse::<Selector>() {
                prop_assert_eq!(selector.to_string().parse::<Selector>(), Ok(selector));
            }
        }
    }
}
