use super::*;

fn version(name: &str) -> Result<(), String> {
    check_version(name).map_err(|reject| reject.to_string())
}

#[test]
fn versions_of_one_line_fit() {
    assert_eq!(version("reeve:plugin/host@0.1.0"), Ok(()));
    assert_eq!(version("reeve:plugin/host@0.1.12"), Ok(()));
    for (name, part) in [
        ("reeve:plugin/host@0.2.0", "a newer host is needed"),
        ("reeve:plugin/host@1.0.0", "a newer host is needed"),
        ("reeve:plugin/host@0.0.3", "newer reeve-sdk"),
        ("reeve:plugin/host", "no version"),
    ] {
        let text = version(name).expect_err(name);
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn documents_are_divided_and_joined_sections_too() {
    assert_eq!(documents("a: 1\n---\nb: 2\n"), ["a: 1\n", "b: 2\n"]);
    assert_eq!(documents("---\na: 1\n--- \n\n---\n"), ["a: 1\n"]);
    assert_eq!(documents("\0\0"), [""; 0]);
}

fn roles(exports: &[&str]) -> Result<(String, Roles), String> {
    let exports = exports.iter().map(|name| ((*name).to_owned(), ComponentExternalKind::Instance)).collect();
    let outline = Outline { imports: Vec::new(), exports, crds: Vec::new() };
    outline.roles().map_err(|reject| reject.to_string())
}

#[test]
fn exports_say_the_roles() {
    let plugin = "reeve:plugin/plugin@0.1.0";
    let reconciler = "reeve:plugin/reconciler@0.1.0";
    let all = roles(&[plugin, reconciler, "reeve:plugin/cleanup@0.1.0", "reeve:plugin/mapper@0.1.0"]);
    assert_eq!(all, Ok(("0.1.0".to_owned(), Roles { reconcile: true, cleanup: true, map: true })));
    for (exports, part) in [
        (&[plugin, reconciler, "wasi:cli/run@0.2.6"][..], "wasi:cli/run@0.2.6"),
        (&[plugin, reconciler, "reeve:plugin/admission@0.1.0"][..], "a newer host is needed"),
        (&[plugin, reconciler, "reeve:plugin/other@0.1.0"][..], "remove the export"),
        (&[plugin][..], "exports no reeve:plugin/reconciler"),
        (&[reconciler][..], "exports no reeve:plugin/plugin"),
        (&["wasi:cli/run@0.2.6"][..], "exports wasi:cli/run@0.2.6"),
    ] {
        let text = roles(exports).expect_err(part);
        assert!(text.contains(part), "{text}");
    }
}
