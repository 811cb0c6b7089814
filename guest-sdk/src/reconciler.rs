//! The traits that a plugin implements, and the standard flow around them.
//!
//! Invariant: everything that an author need not think about (the deletion check, an object of
//! the wrong shape, whether the children are complete, when to come back) happens in the
//! functions of [`flow`], once, for the host and for tests alike.

use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::Error;
use crate::handle::Handle;
use crate::manifest::Manifest;
use crate::object::ObjectName;
use crate::outcome::Outcome;

/// A plugin: brings the objects of one kind to their desired state.
pub trait Reconciler {
    /// What the primary object is read as: any `serde` type. [`Object`](crate::Object) fits
    /// custom resources; a small struct with the fields that matter fits anything. An object that
    /// does not have this shape is a permanent failure of that object, which names the path, and
    /// [`reconcile`](Self::reconcile) is not called for it.
    type Object: DeserializeOwned;

    /// What the plugin is called, which kinds it works on, and its limits.
    ///
    /// It must be pure: the host calls it once per file, before anything is granted.
    fn manifest() -> Manifest;

    /// Brings the primary object closer to its desired state.
    ///
    /// # Errors
    /// Whatever the author decides is wrong. A transient error is retried with back-off, a
    /// permanent one waits for the next change of the object.
    fn reconcile(ctx: &Context, object: &Self::Object) -> Result<Outcome, Error>;

    /// Called once when the primary is gone, if the manifest asks for it with
    /// [`when_gone`](Manifest::when_gone). Children are garbage-collected without it.
    ///
    /// # Errors
    /// As [`reconcile`](Self::reconcile).
    fn gone(ctx: &Context) -> Result<Outcome, Error> {
        let _ = ctx;
        Ok(Outcome::done())
    }
}

/// A plugin that has to tidy up before an object goes: `export!(Plugin, cleanup)`.
///
/// The host keeps a finalizer on every primary object and removes it once this said done.
pub trait Cleanup: Reconciler {
    /// Runs instead of [`reconcile`](Reconciler::reconcile) once the primary is being deleted.
    /// [`Outcome::done`] lets it go; a wait or a requeue-after means "not yet, ask again". Children
    /// are left to the garbage collector, unless the run says
    /// [`children_complete`](Outcome::children_complete).
    ///
    /// # Errors
    /// A failure keeps the object and is retried as any other.
    fn cleanup(ctx: &Context, object: &Self::Object) -> Result<Outcome, Error>;
}

/// A plugin that computes which primaries a change concerns: `export!(Plugin, map)`.
pub trait Mapper: Reconciler {
    /// The primaries that a changed object concerns. `watch` is the name of the watch in the
    /// manifest (the kind, unless it was given another). On an update it is called for the old
    /// and for the new object.
    ///
    /// # Errors
    /// Logged and counted by the host; the change then concerns nobody.
    fn map(watch: &str, changed: &Handle) -> Result<Vec<ObjectName>, Error>;
}

/// The standard flow around an author's functions.
pub(crate) mod flow {
    use super::{Cleanup, Context, Error, Reconciler};

    /// One run of the role `reconciler`.
    pub(crate) fn reconcile<P: Reconciler>(ctx: &Context) -> Result<(), Error> {
        let Some(primary) = ctx.primary() else {
            return P::gone(ctx)?.stage(ctx, false);
        };
        if primary.deleting() {
            return Ok(());
        }
        let object = primary.parse()?;
        P::reconcile(ctx, &object)?.stage(ctx, true)
    }

    /// One run of the role `cleanup`.
    pub(crate) fn cleanup<P: Cleanup>(ctx: &Context) -> Result<(), Error> {
        let Some(primary) = ctx.primary() else {
            return Ok(());
        };
        let object = primary.parse()?;
        P::cleanup(ctx, &object)?.stage(ctx, false)
    }
}
