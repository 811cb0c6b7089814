//! The smallest useful plugin: greets whoever a labelled ConfigMap names.
//!
//! A ConfigMap `x` with the label `example.reeve.dev/hello` and `data.name` gets a child
//! `x-hello` whose `data.greeting` is the greeting.

use reeve_sdk::prelude::*;

/// As much of a ConfigMap as matters here.
#[derive(Deserialize)]
struct Source {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

struct Hello;

impl Reconciler for Hello {
    type Object = Source;

    fn manifest() -> Manifest {
        Manifest::new("hello-configmap", env!("CARGO_PKG_VERSION"), "v1", "ConfigMap")
            .description("Greets whoever a labelled ConfigMap names")
            .select_labels("example.reeve.dev/hello")
            .owns("v1", "ConfigMap")
    }

    fn reconcile(ctx: &Context, source: &Source) -> Result<Outcome, Error> {
        let name = source.data.get("name").map_or("world", String::as_str);
        ctx.apply_child(&json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": format!("{}-hello", ctx.name()) },
            "data": { "greeting": format!("Hello, {name}!") },
        }))?;
        Ok(Outcome::done())
    }
}

reeve_sdk::export!(Hello);

#[cfg(test)]
mod tests {
    use reeve_sdk::testing::Case;

    use super::*;

    #[test]
    fn greets_by_name() {
        let source = json!({ "metadata": { "name": "a", "namespace": "web" }, "data": { "name": "Ada" } });
        let run = Case::new(source).run::<Hello>();
        assert_eq!(run.plan().child("ConfigMap", "a-hello")["data"]["greeting"], "Hello, Ada!");
    }
}
