//! The cluster as its administrator sees it: objects as JSON, by `apiVersion/Kind`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, anyhow, ensure};
use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::wait::soon;

/// A client for one API server. The kinds that it is asked for are written as `v1/ConfigMap`,
/// `apps/v1/Deployment`.
#[derive(Clone)]
pub struct Kube {
    client: kube::Client,
    kubeconfig: PathBuf,
    kubectl: PathBuf,
}

/// What the API server answered instead of an object.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path}: {code} {reason}: {message}")]
pub struct Refused {
    method: Method,
    path: String,
    /// The HTTP status.
    pub code: u16,
    /// The Status's reason.
    pub reason: String,
    /// The Status's message.
    pub message: String,
}

// === impl Kube ===

impl Kube {
    /// A client with a kubeconfig's current context.
    pub async fn new(kubeconfig: &Path, kubectl: PathBuf) -> anyhow::Result<Self> {
        let read = kube::config::Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
        let mut config =
            kube::Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await?;
        // What is refused shall be seen, not tried again.
        config.default_retry = false;
        let client = kube::Client::try_from(config)?;
        Ok(Self { client, kubeconfig: kubeconfig.to_owned(), kubectl })
    }

    /// Its kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sends a request and returns the answer's body.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> anyhow::Result<Value> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder()
            .method(method.clone())
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body)?;
        match self.client.request::<Value>(request).await {
            Ok(value) => Ok(value),
            Err(kube::Error::Api(status)) => Err(Refused {
                method,
                path: path.to_owned(),
                code: status.code,
                reason: status.reason.clone(),
                message: status.message.clone(),
            }
            .into()),
            Err(error) => Err(anyhow!(error).context(format!("{method} {path}"))),
        }
    }

    /// The object, if it exists.
    pub async fn find(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<Option<Value>> {
        let path = format!("{}/{name}", collection(kind, namespace)?);
        match self.request(Method::GET, &path, "application/json", &Value::Null).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if code(&error) == Some(404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The object; an error without it.
    pub async fn get(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<Value> {
        let found = self.find(kind, namespace, name).await?;
        found.with_context(|| format!("there is no {kind} {namespace}/{name}"))
    }

    /// Objects with these labels (empty: all), in a namespace (empty: all).
    pub async fn list(&self, kind: &str, namespace: &str, labels: &str) -> anyhow::Result<Vec<Value>> {
        let labels = labels.replace('=', "%3D").replace(',', "%2C");
        let path = format!("{}?labelSelector={labels}", collection(kind, namespace)?);
        let list = self.request(Method::GET, &path, "application/json", &Value::Null).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Creates an object.
    pub async fn create(&self, object: &Value) -> anyhow::Result<Value> {
        let (kind, namespace, _) = key(object)?;
        self.request(Method::POST, &collection(&kind, &namespace)?, "application/json", object).await
    }

    /// Applies an object (server-side, with force, as field manager `e2e`).
    pub async fn apply(&self, object: &Value) -> anyhow::Result<Value> {
        let (kind, namespace, name) = key(object)?;
        let path = format!("{}/{name}?fieldManager=e2e&force=true", collection(&kind, &namespace)?);
        self.request(Method::PATCH, &path, "application/apply-patch+yaml", object).await
    }

    /// Merges a patch into an object, or with `name` as `x/status` into its status.
    pub async fn merge(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> anyhow::Result<Value> {
        let target = format!("{}/{name}?fieldManager=e2e", collection(kind, namespace)?);
        self.request(Method::PATCH, &target, "application/merge-patch+json", patch).await
    }

    /// Deletes an object; one that is gone already is fine.
    pub async fn delete(&self, kind: &str, namespace: &str, name: &str) -> anyhow::Result<()> {
        self.delete_with(kind, namespace, name, &json!({ "propagationPolicy": "Background" })).await
    }

    /// Deletes an object with these options.
    pub async fn delete_with(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> anyhow::Result<()> {
        let path = format!("{}/{name}", collection(kind, namespace)?);
        match self.request(Method::DELETE, &path, "application/json", options).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(404) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Applies a CRD and waits until it is served.
    pub async fn install(&self, crd: &Value) -> anyhow::Result<()> {
        self.apply(crd).await?;
        let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        soon(&format!("CRD {name} is established"), async || {
            let live = self.get("apiextensions.k8s.io/v1/CustomResourceDefinition", "", &name).await?;
            ensure!(condition(&live, "Established") == Some("True"), "{}", live["status"]);
            Ok(())
        })
        .await
    }

    /// Runs kubectl with the administrator's rights and returns its stdout.
    pub async fn kubectl(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let mut child = tokio::process::Command::new(&self.kubectl)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("failed to start {}", self.kubectl.display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "kubectl {}: {errors}", arguments.join(" "));
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The HTTP status of a refusal.
pub fn code(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<Refused>().map(|refused| refused.code)
}

/// The status of a condition of an object.
pub fn condition<'a>(object: &'a Value, of: &str) -> Option<&'a str> {
    find_condition(object, of)?["status"].as_str()
}

/// A condition of an object.
pub fn find_condition<'a>(object: &'a Value, of: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == of)
}

/// Kind, namespace (or empty) and name of an object.
fn key(object: &Value) -> anyhow::Result<(String, String, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let version = text(&object["apiVersion"]).context("the object has no apiVersion")?;
    let kind = text(&object["kind"]).context("the object has no kind")?;
    let name = text(&object["metadata"]["name"]).context("the object has no name")?;
    Ok((format!("{version}/{kind}"), text(&object["metadata"]["namespace"]).unwrap_or_default(), name))
}

/// The path of a collection. The plural is made by English rules, which all kinds here follow.
fn collection(kind: &str, namespace: &str) -> anyhow::Result<String> {
    let (version, kind) = kind.rsplit_once('/').with_context(|| format!("{kind:?} is no apiVersion/Kind"))?;
    let root = if version.contains('/') { "apis" } else { "api" };
    let kind = kind.to_lowercase();
    let plural = match kind.strip_suffix('y') {
        Some(stem) if !stem.ends_with(['a', 'e', 'o']) => format!("{stem}ies"),
        _ if kind.ends_with('s') => format!("{kind}es"),
        _ => format!("{kind}s"),
    };
    Ok(if namespace.is_empty() {
        format!("/{root}/{version}/{plural}")
    } else {
        format!("/{root}/{version}/namespaces/{namespace}/{plural}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_are_found() {
        for (kind, namespace, expected) in [
            ("v1/ConfigMap", "a", "/api/v1/namespaces/a/configmaps"),
            ("v1/Namespace", "", "/api/v1/namespaces"),
            (
                "networking.k8s.io/v1/NetworkPolicy",
                "a",
                "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies",
            ),
            ("networking.k8s.io/v1/Ingress", "a", "/apis/networking.k8s.io/v1/namespaces/a/ingresses"),
        ] {
            assert_eq!(collection(kind, namespace).unwrap(), expected);
        }
        assert!(collection("ConfigMap", "").is_err());
    }

    #[test]
    fn conditions_are_found() {
        let object = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        assert_eq!(condition(&object, "Ready"), Some("False"));
        assert_eq!(condition(&object, "Other"), None);
        assert_eq!(condition(&json!({}), "Ready"), None);
    }
}
