//! What a plugin reads from and stages into during one run.

use std::cell::OnceCell;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{Backend, CallImpl, Gvk};
use crate::condition::ConditionStatus;
use crate::decode;
use crate::error::Error;
use crate::handle::{Handle, Handles};
use crate::object::ObjectName;
use crate::write::{Answer, Write};

/// One run of a plugin for one object.
pub struct Context {
    backend: CallImpl,
    name: OnceCell<ObjectName>,
}

/// Whether an event tells good or bad news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Things go as they should.
    Normal,
    /// They do not.
    Warning,
}

/// A read of several objects; everything given must hold.
///
/// ```
/// # use reeve_sdk::{Context, Error};
/// # fn reconcile(ctx: &Context) -> Result<(), Error> {
/// let pods = ctx.list("v1", "Pod").namespace("web").labels("app=shop,tier in (a,b)").handles()?;
/// # Ok(()) }
/// ```
#[must_use = "end it with `handles` or `parse`"]
pub struct Query<'a> {
    ctx: &'a Context,
    kind: Gvk,
    filters: Vec<(String, String)>,
}

// === impl Context ===

impl Context {
    pub(crate) fn new(backend: CallImpl) -> Self {
        Self { backend, name: OnceCell::new() }
    }

    pub(crate) fn backend(&self) -> &impl Backend {
        &self.backend
    }

    // --- what this run is about

    /// The primary's name.
    pub fn name(&self) -> &str {
        &self.key().name
    }

    /// The primary's namespace; `None` for cluster-scoped kinds.
    pub fn namespace(&self) -> Option<&str> {
        self.key().namespace.as_deref()
    }

    /// Name and namespace of the primary.
    pub fn key(&self) -> &ObjectName {
        self.name.get_or_init(|| self.backend.name())
    }

    /// The primary object as it is in the cache; `None` when it is gone.
    pub fn primary(&self) -> Option<Handle> {
        self.backend.primary().map(|item| Handle::new(item, ""))
    }

    /// The primary's UID; empty when it is gone.
    pub fn uid(&self) -> String {
        self.primary().map(|primary| primary.uid()).unwrap_or_default()
    }

    /// Why this run happens: `created`, `updated`, `child`, `timer`, `retry`, … Only hints for
    /// logs: the result must not depend on them.
    pub fn reasons(&self) -> Vec<String> {
        self.backend.reasons()
    }

    /// 1 for the first attempt, one more for each failure before this one.
    pub fn attempt(&self) -> u32 {
        self.backend.attempt()
    }

    /// How long until this run is ended and nothing of it committed.
    pub fn remaining(&self) -> Duration {
        Duration::from_millis(self.backend.remaining_ms())
    }

    /// Whether to come to an end early: at 80 % of the deadline, or when the host stops.
    pub fn cancelled(&self) -> bool {
        self.backend.cancelled()
    }

    /// The plugin's configuration; the default where the operator gave none.
    ///
    /// # Errors
    /// [`INVALID_CONFIG`](crate::code::INVALID_CONFIG), permanent, with the path of the value that
    /// does not fit.
    pub fn config<T: DeserializeOwned + Default>(&self) -> Result<T, Error> {
        let json = self.backend.config();
        if json == "null" { Ok(T::default()) } else { decode::config(&json) }
    }

    /// The wall clock; a virtual one in tests. See [`crate::time`] for RFC 3339.
    pub fn now(&self) -> SystemTime {
        self.backend.now()
    }

    // --- reads

    /// An object of the primary's namespace, or of a cluster-scoped kind.
    ///
    /// # Errors
    /// A kind that the manifest does not declare or the operator does not grant; an object that
    /// does not have the shape of `T`.
    pub fn get<T: DeserializeOwned>(
        &self,
        api_version: &str,
        kind: &str,
        name: &str,
    ) -> Result<Option<T>, Error> {
        self.find(api_version, kind, name)?.map(|handle| handle.parse()).transpose()
    }

    /// A lazy handle on an object of the primary's namespace, or of a cluster-scoped kind.
    ///
    /// # Errors
    /// A kind that the manifest does not declare or the operator does not grant.
    pub fn find(&self, api_version: &str, kind: &str, name: &str) -> Result<Option<Handle>, Error> {
        let name = ObjectName { namespace: self.key().namespace.clone(), name: name.to_owned() };
        self.find_at(api_version, kind, &name)
    }

    /// A lazy handle on an object anywhere.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_at(&self, api_version: &str, kind: &str, name: &ObjectName) -> Result<Option<Handle>, Error> {
        let found = self.backend.get(&Gvk::new(api_version, kind), name)?;
        Ok(found.map(|item| Handle::new(item, kind)))
    }

    /// The objects of a kind, of all namespaces unless the query says otherwise.
    pub fn list(&self, api_version: &str, kind: &str) -> Query<'_> {
        Query { ctx: self, kind: Gvk::new(api_version, kind), filters: Vec::new() }
    }

    /// The children of one kind that this plugin owns below the primary.
    ///
    /// # Errors
    /// A kind that the manifest does not declare.
    pub fn children(&self, api_version: &str, kind: &str) -> Result<Handles, Error> {
        let items = self.backend.children(&Gvk::new(api_version, kind))?;
        Ok(Handles::new(items, kind))
    }

    // --- staging

    /// Stages a desired child: a `json!` literal or any `serde` type with `apiVersion`, `kind` and
    /// `metadata.name`. The host adds owner reference, label and namespace, and writes only what
    /// differs. A live object of that name that this plugin does not own is refused.
    ///
    /// # Errors
    /// A kind that the manifest does not declare as owned; a body without name; a limit.
    pub fn apply_child(&self, object: &impl Serialize) -> Result<(), Error> {
        self.backend.apply_child(&serde_json::to_string(object)?, &[])
    }

    /// As [`apply_child`](Self::apply_child), and takes over an object that has no controller.
    ///
    /// # Errors
    /// As [`apply_child`](Self::apply_child).
    pub fn adopt_child(&self, object: &impl Serialize) -> Result<(), Error> {
        self.backend.apply_child(&serde_json::to_string(object)?, &[("adopt".to_owned(), "true".to_owned())])
    }

    /// Says that the staged children are all there should be. [`Outcome::done`](crate::Outcome::done)
    /// says it by itself; this is for a run that ends otherwise.
    pub fn children_complete(&self) {
        self.backend.children_complete();
    }

    /// Stages a merge patch of the primary's status: what it names is set, `null` removes, the
    /// rest stays. Several calls merge. `conditions` and `observedGeneration` are the host's.
    ///
    /// # Errors
    /// No JSON object; `conditions` or `observedGeneration` in it; a kind without status; a limit.
    pub fn set_status(&self, status: &impl Serialize) -> Result<(), Error> {
        self.backend.set_status(&serde_json::to_string(status)?)
    }

    /// Stages a condition of the primary. The host keeps `lastTransitionTime` and
    /// `observedGeneration`. `status` is a `bool` or a [`ConditionStatus`], the reason a
    /// `CamelCase` word, the message a sentence.
    ///
    /// # Errors
    /// A type or reason that Kubernetes does not take; a limit.
    pub fn condition(
        &self,
        kind: &str,
        status: impl Into<ConditionStatus>,
        reason: &str,
        message: &str,
    ) -> Result<(), Error> {
        self.backend.set_condition(kind, status.into().as_str(), reason, message)
    }

    /// Stages a `Normal` event about the primary: a `CamelCase` reason and a sentence.
    ///
    /// # Errors
    /// A limit.
    pub fn event(&self, reason: &str, note: &str) -> Result<(), Error> {
        self.emit(EventKind::Normal, reason, "Reconcile", note)
    }

    /// Stages an event about the primary; `action` is a `CamelCase` verb for what was done.
    ///
    /// # Errors
    /// A limit.
    pub fn emit(&self, kind: EventKind, reason: &str, action: &str, note: &str) -> Result<(), Error> {
        let kind = match kind {
            EventKind::Normal => "Normal",
            EventKind::Warning => "Warning",
        };
        self.backend.emit_event(kind, reason, action, note)
    }

    /// Stages any other write.
    ///
    /// # Errors
    /// A kind or verb that the manifest does not declare with `writes`; a limit.
    pub fn write(&self, write: &Write) -> Result<(), Error> {
        self.backend.write(None, &serde_json::to_string(write.request())?)
    }

    /// A write whose answer matters: `None` the first time, when it is staged; the answer in the
    /// run that follows at once. Answers live in memory only: after a restart of the host the
    /// write is made again.
    ///
    /// ```
    /// # use reeve_sdk::{json, Context, Error, Outcome, Write};
    /// # fn reconcile(ctx: &Context) -> Result<Outcome, Error> {
    /// let review = Write::create(&json!({
    ///     "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
    ///     "spec": { "user": "ada", "resourceAttributes": { "verb": "get", "resource": "pods" } },
    /// }))?;
    /// let Some(answer) = ctx.ask("review", &review)? else { return Ok(Outcome::pending()) };
    /// let allowed = answer.into_result()?["status"]["allowed"] == true;
    /// # let _ = allowed; Ok(Outcome::done()) }
    /// ```
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn ask(&self, id: &str, write: &Write) -> Result<Option<Answer>, Error> {
        if let Some(answer) = self.backend.answer(id) {
            return Answer::read(&answer).map(Some);
        }
        self.backend.write(Some(id), &serde_json::to_string(write.request())?)?;
        Ok(None)
    }

    /// The answer of an earlier [`ask`](Self::ask), if it is there.
    ///
    /// # Errors
    /// The host's answer is not readable.
    pub fn answer(&self, id: &str) -> Result<Option<Answer>, Error> {
        self.backend.answer(id).map(|answer| Answer::read(&answer)).transpose()
    }

    /// Stages what the contract calls `write` from its JSON form, for plugins that are told what
    /// to do as data.
    ///
    /// # Errors
    /// As [`write`](Self::write), and a key that the host does not know.
    pub fn write_raw(&self, id: Option<&str>, request: &impl Serialize) -> Result<(), Error> {
        self.backend.write(id, &serde_json::to_string(request)?)
    }

    /// Stages what the contract calls `wait-for` from its JSON form; [`Outcome::wait_for`] is the
    /// typed way.
    ///
    /// [`Outcome::wait_for`]: crate::Outcome::wait_for
    ///
    /// # Errors
    /// A request that is not usable, or a key that the host does not know.
    pub fn wait_for_raw(&self, request: &impl Serialize) -> Result<(), Error> {
        self.backend.wait_for(&serde_json::to_string(request)?)
    }

    /// Stages what the contract calls `requeue-after`, in a run that may still fail (the failure
    /// then wins); [`Outcome::requeue_after`] is the usual way.
    ///
    /// [`Outcome::requeue_after`]: crate::Outcome::requeue_after
    pub fn requeue_after_raw(&self, delay: Duration) {
        self.backend.requeue_after(crate::outcome::milliseconds(delay));
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context({})", self.key())
    }
}

// === impl Query ===

impl Query<'_> {
    /// Only this namespace.
    pub fn namespace(self, namespace: &str) -> Self {
        self.filter("namespace", namespace)
    }

    /// Only labels that a selector matches, for example `app=web,tier in (a,b)`.
    pub fn labels(self, selector: &str) -> Self {
        self.filter("labels", selector)
    }

    /// Only objects with this UID among their owners.
    pub fn owner(self, uid: &str) -> Self {
        self.filter("owner", uid)
    }

    /// Only objects that have this value in a declared index.
    pub fn index(self, name: &str, value: &str) -> Self {
        self.filter(&format!("index:{name}"), value)
    }

    /// Lazy handles on the objects.
    ///
    /// # Errors
    /// A kind or index that the manifest does not declare; a selector that is none; a scope that
    /// is not granted.
    pub fn handles(self) -> Result<Handles, Error> {
        let items = self.ctx.backend.list(&self.kind, &self.filters)?;
        Ok(Handles::new(items, &self.kind.kind))
    }

    /// The objects as a `serde` type.
    ///
    /// # Errors
    /// As [`handles`](Self::handles), and an object that does not have the shape of `T`.
    pub fn parse<T: DeserializeOwned>(self) -> Result<Vec<T>, Error> {
        self.handles()?.parse()
    }

    fn filter(mut self, key: &str, value: &str) -> Self {
        self.filters.push((key.to_owned(), value.to_owned()));
        self
    }
}
