use super::*;

#[test]
fn pointers_of_the_rfc() {
    let json =
        r#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,"g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
    for (text, expected) in [
        ("", Some(json)),
        ("/foo", Some(r#"["bar","baz"]"#)),
        ("/foo/0", Some("\"bar\"")),
        ("/", Some("0")),
        ("/a~1b", Some("1")),
        ("/i\\j", Some("5")),
        ("/k\"l", Some("6")),
        ("/ ", Some("7")),
        ("/m~0n", Some("8")),
        ("foo", None),
        ("/foo/2", None),
        ("/foo/-", None),
        ("/foo/01", None),
        ("/foo/0/x", None),
    ] {
        assert_eq!(pointer(json, text), expected, "{text:?}");
    }
}
