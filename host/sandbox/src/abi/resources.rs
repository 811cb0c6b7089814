//! What stands behind the handles of the contract: objects and lists.

use std::sync::Arc;

use reeve_core::object::SharedObject;
use wasmtime::component::Resource;

use super::bindings::reeve::plugin::host::{self, Json};
use super::convert;
use super::state::State;
use crate::config::MAX_SCAN;
use crate::limits::Ended;

/// The context of a run. Everything it does is in the store's [`State`].
#[derive(Debug)]
pub struct ContextHandle;

/// One version of one object.
#[derive(Debug)]
pub struct ObjectHandle(pub(super) SharedObject);

/// A snapshot of a list.
#[derive(Debug)]
pub struct ListHandle(pub(super) Arc<[SharedObject]>);

fn texts(object: &SharedObject, pointers: &[String]) -> Result<Vec<Option<Json>>, Ended> {
    if object.json().len().saturating_mul(pointers.len()) > MAX_SCAN {
        let place = " (pointers times the size of the object); take it whole with `raw`";
        return Err(Ended::Limit {
            what: "bytes to look through in one get-many",
            limit: MAX_SCAN as u64,
            place,
        });
    }
    let values = reeve_core::json::pointer_many(object.json(), pointers);
    Ok(values.into_iter().map(|value| value.map(str::to_owned)).collect())
}

impl State {
    fn object(&mut self, handle: &Resource<ObjectHandle>) -> wasmtime::Result<&SharedObject> {
        self.count()?;
        Ok(&self.table.get(handle)?.0)
    }

    fn item(&mut self, handle: &Resource<ListHandle>, index: u32) -> wasmtime::Result<Option<&SharedObject>> {
        self.count()?;
        Ok(self.table.get(handle)?.0.get(index as usize))
    }
}

impl host::HostObject for State {
    fn raw(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<Json> {
        Ok(self.object(&object)?.json().to_owned())
    }

    fn get(&mut self, object: Resource<ObjectHandle>, pointer: String) -> wasmtime::Result<Option<Json>> {
        Ok(self.object(&object)?.pointer(&pointer).map(str::to_owned))
    }

    fn get_many(
        &mut self,
        object: Resource<ObjectHandle>,
        pointers: Vec<String>,
    ) -> wasmtime::Result<Vec<Option<Json>>> {
        Ok(texts(self.object(&object)?, &pointers)?)
    }

    fn name(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<host::ObjectName> {
        Ok(convert::name_to_guest(&self.object(&object)?.meta().name))
    }

    fn uid(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&object)?.meta().uid.to_string())
    }

    fn resource_version(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<String> {
        Ok(self.object(&object)?.meta().resource_version.to_string())
    }

    fn generation(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<u64> {
        Ok(self.object(&object)?.meta().generation)
    }

    fn deleting(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<bool> {
        Ok(self.object(&object)?.meta().deleting)
    }

    fn drop(&mut self, object: Resource<ObjectHandle>) -> wasmtime::Result<()> {
        self.table.delete(object)?;
        Ok(())
    }
}

impl host::HostObjectList for State {
    fn len(&mut self, list: Resource<ListHandle>) -> wasmtime::Result<u32> {
        self.count()?;
        Ok(u32::try_from(self.table.get(&list)?.0.len()).unwrap_or(u32::MAX))
    }

    fn raw(&mut self, list: Resource<ListHandle>, index: u32) -> wasmtime::Result<Option<Json>> {
        Ok(self.item(&list, index)?.map(|object| object.json().to_owned()))
    }

    fn at(
        &mut self,
        list: Resource<ListHandle>,
        index: u32,
    ) -> wasmtime::Result<Option<Resource<ObjectHandle>>> {
        let object = self.item(&list, index)?.map(Arc::clone);
        object.map(|object| self.push_object(object)).transpose()
    }

    fn get_many(
        &mut self,
        list: Resource<ListHandle>,
        index: u32,
        pointers: Vec<String>,
    ) -> wasmtime::Result<Vec<Option<Json>>> {
        let object = self.item(&list, index)?;
        Ok(object.map(|object| texts(object, &pointers)).transpose()?.unwrap_or_default())
    }

    fn drop(&mut self, list: Resource<ListHandle>) -> wasmtime::Result<()> {
        self.table.delete(list)?;
        Ok(())
    }
}
