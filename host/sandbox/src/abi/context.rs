//! The context of a run: what a plugin reads and stages.

use reeve_core::failure::Failure;
use reeve_core::gvk::Gvk;
use reeve_core::read::Query;
use wasmtime::component::Resource;

use super::bindings::reeve::plugin::host::{self, Json};
use super::convert;
use super::resources::{ContextHandle, ListHandle, ObjectHandle};
use super::state::State;
use crate::filters;
use crate::limits::Ended;

type Context = Resource<ContextHandle>;
/// `Err` outside ends the run, `Err` inside is a refusal that the plugin sees.
type Answer<T> = wasmtime::Result<Result<T, host::Failure>>;

/// A refusal, as the plugin sees it.
fn refusal(failure: Failure) -> host::Failure {
    convert::failure_to_guest(failure)
}

/// What staging came to: a refusal, or a limit that ends the run.
fn staged(result: Result<Result<(), Failure>, Ended>) -> Answer<()> {
    Ok(result?.map_err(refusal))
}

impl State {
    async fn read_list(&mut self, gvk: &Gvk, query: Query) -> Answer<Resource<ListHandle>> {
        if let Err(failure) = convert::check_names(convert::gvk_parts(gvk)) {
            return Ok(Err(refusal(failure)));
        }
        let run = self.run()?;
        if let Some(list) = run.pins.list(gvk, &query) {
            return Ok(Ok(self.push_list(list)?));
        }
        if let Err(denied) = run.facts.grant.check_read(gvk, query.namespace.as_deref()) {
            return Ok(Err(refusal(convert::denied(&denied))));
        }
        if let Some(held) = run.request.reader.held(gvk, None) {
            self.wait(held).await;
        }
        let Some(run) = self.run.as_deref_mut() else { return Err(Ended::OutOfPlace.into()) };
        match run.request.reader.list(gvk, &query) {
            Ok(list) => {
                let list = run.pins.pin_list(gvk, query, list, run.request.primary.as_ref())?;
                Ok(Ok(self.push_list(list)?))
            }
            Err(error) => Ok(Err(refusal(convert::read_error(&error)))),
        }
    }
}

impl host::HostContext for State {
    fn name(&mut self, _: Context) -> wasmtime::Result<host::ObjectName> {
        Ok(convert::name_to_guest(&self.run()?.request.name))
    }

    fn primary(&mut self, _: Context) -> wasmtime::Result<Option<Resource<ObjectHandle>>> {
        let primary = self.run()?.request.primary.clone();
        primary.map(|object| self.push_object(object)).transpose()
    }

    fn reasons(&mut self, _: Context) -> wasmtime::Result<Vec<String>> {
        Ok(self.run()?.request.reasons.iter().map(|reason| reason.as_str().to_owned()).collect())
    }

    fn attempt(&mut self, _: Context) -> wasmtime::Result<u32> {
        Ok(self.run()?.request.attempt)
    }

    fn remaining_ms(&mut self, _: Context) -> wasmtime::Result<u64> {
        self.count()?;
        Ok(u64::try_from(self.time.remaining().as_millis()).unwrap_or(u64::MAX))
    }

    fn cancelled(&mut self, _: Context) -> wasmtime::Result<bool> {
        self.count()?;
        Ok(self.time.should_end())
    }

    fn config(&mut self, _: Context) -> wasmtime::Result<Json> {
        Ok(self.run()?.request.config.to_string())
    }

    async fn get(
        &mut self,
        _: Context,
        kind: host::Gvk,
        name: host::ObjectName,
    ) -> Answer<Option<Resource<ObjectHandle>>> {
        let (gvk, name) = (convert::gvk_from_guest(&kind), convert::name_from_guest(name));
        let run = self.run()?;
        let names = [name.namespace_or_empty(), &name.name];
        if let Err(failure) = convert::check_names(convert::gvk_parts(&gvk).into_iter().chain(names)) {
            return Ok(Err(refusal(failure)));
        }
        let is_primary = gvk == *run.facts.grant.primary() && name == run.request.name;
        let pinned = match &run.request.primary {
            primary @ Some(_) if is_primary => Some(primary),
            _ => run.pins.object(&gvk, &name),
        };
        let object = if let Some(object) = pinned {
            object.clone()
        } else {
            if let Err(denied) = run.facts.grant.check_read(&gvk, name.namespace.as_deref()) {
                return Ok(Err(refusal(convert::denied(&denied))));
            }
            if let Some(held) = run.request.reader.held(&gvk, Some(&name)) {
                self.wait(held).await;
            }
            let Some(run) = self.run.as_deref_mut() else { return Err(Ended::OutOfPlace.into()) };
            match run.request.reader.get(&gvk, &name) {
                Ok(object) => {
                    run.pins.pin_object(&gvk, name, object.clone())?;
                    object
                }
                Err(error) => return Ok(Err(refusal(convert::read_error(&error)))),
            }
        };
        Ok(Ok(object.map(|object| self.push_object(object)).transpose()?))
    }

    async fn list_objects(
        &mut self,
        _: Context,
        kind: host::Gvk,
        filters: Vec<(String, String)>,
    ) -> Answer<Resource<ListHandle>> {
        match filters::query(&filters) {
            Ok(query) => self.read_list(&convert::gvk_from_guest(&kind), query).await,
            Err(failure) => Ok(Err(refusal(failure))),
        }
    }

    async fn children(&mut self, _: Context, kind: host::Gvk) -> Answer<Resource<ListHandle>> {
        let run = self.run()?;
        let query = run.request.primary.as_ref().map(|primary| Query {
            namespace: primary.meta().name.namespace.clone(),
            labels: Some(run.facts.children.clone()),
            owner: Some(primary.meta().uid.clone()),
            index: None,
        });
        match query {
            Some(query) => self.read_list(&convert::gvk_from_guest(&kind), query).await,
            // The primary is gone, and what it owned goes with it.
            None => Ok(Ok(self.push_list([].into())?)),
        }
    }

    fn answer(&mut self, _: Context, id: String) -> wasmtime::Result<Option<Json>> {
        Ok(self.run()?.request.answers.get(&id).map(ToString::to_string))
    }

    fn apply_child(&mut self, _: Context, object: Json, options: Vec<(String, String)>) -> Answer<()> {
        let run = self.run()?;
        staged(run.staging.child(&object, &options, &run.request.name, &run.facts.grant))
    }

    fn children_complete(&mut self, _: Context) -> wasmtime::Result<()> {
        self.run()?.staging.children_complete();
        Ok(())
    }

    fn set_status(&mut self, _: Context, status: Json) -> Answer<()> {
        staged(self.run()?.staging.status(&status))
    }

    fn set_condition(
        &mut self,
        _: Context,
        kind: String,
        status: String,
        reason: String,
        message: String,
    ) -> Answer<()> {
        staged(self.run()?.staging.condition(kind, &status, reason, &message))
    }

    fn emit_event(
        &mut self,
        _: Context,
        kind: String,
        reason: String,
        action: String,
        note: String,
    ) -> Answer<()> {
        staged(self.run()?.staging.event(&kind, reason, action, &note))
    }

    fn write(&mut self, _: Context, id: Option<String>, request: Json) -> Answer<()> {
        let run = self.run()?;
        staged(run.staging.write(id, &request, &run.request.name, &run.facts.grant))
    }

    fn wait_for(&mut self, _: Context, request: Json) -> Answer<()> {
        let run = self.run()?;
        staged(run.staging.wait(&request, &run.request.name, &run.facts.grant))
    }

    fn requeue_after(&mut self, _: Context, ms: u64) -> wasmtime::Result<()> {
        self.run()?.staging.requeue_after(ms);
        Ok(())
    }

    fn drop(&mut self, _: Context) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl host::Host for State {
    fn log(
        &mut self,
        level: host::Level,
        message: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        self.count()?;
        let level = match level {
            host::Level::Trace => tracing::Level::TRACE,
            host::Level::Debug => tracing::Level::DEBUG,
            host::Level::Info => tracing::Level::INFO,
            host::Level::Warn => tracing::Level::WARN,
            host::Level::Error => tracing::Level::ERROR,
        };
        self.log.lock().line(level, &message, &fields);
        Ok(())
    }
}
