//! The one macro that makes a type a plugin.

/// Makes a type the plugin that this crate is: `export!(MyPlugin)`.
///
/// The roles beside [`Reconciler`](crate::Reconciler) are named: `export!(MyPlugin, cleanup)`
/// (needs [`Cleanup`](crate::Cleanup); the host then keeps a finalizer), `export!(MyPlugin, map)`
/// (needs [`Mapper`](crate::Mapper)), `export!(MyPlugin, cleanup, map)`. A role that is
/// implemented and not named is an error of the compiler, so that none is forgotten.
///
/// It is used once in a crate of `crate-type = ["cdylib"]`. Outside of Wasm (in `cargo test`) it
/// only checks.
///
/// ```compile_fail
/// # use reeve_sdk::prelude::*;
/// # struct Plugin;
/// # impl Reconciler for Plugin {
/// #     type Object = Value;
/// #     fn manifest() -> Manifest { Manifest::new("a", "1", "v1", "ConfigMap") }
/// #     fn reconcile(_: &Context, _: &Value) -> Result<Outcome, Error> { Ok(Outcome::done()) }
/// # }
/// impl Cleanup for Plugin {
///     fn cleanup(_: &Context, _: &Value) -> Result<Outcome, Error> { Ok(Outcome::done()) }
/// }
/// reeve_sdk::export!(Plugin); // `cleanup` is forgotten
/// ```
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        $crate::__export_base!($plugin);
        $crate::__not_implemented!($plugin, Cleanup, cleanup_is_implemented_but_not_exported);
        $crate::__not_implemented!($plugin, Mapper, map_is_implemented_but_not_exported);
    };
    ($plugin:ty, cleanup) => {
        $crate::__export_base!($plugin);
        $crate::__export_role!($plugin, Cleanup, cleans_up, export_cleans_up);
        $crate::__not_implemented!($plugin, Mapper, map_is_implemented_but_not_exported);
    };
    ($plugin:ty, map) => {
        $crate::__export_base!($plugin);
        $crate::__export_role!($plugin, Mapper, maps, export_maps);
        $crate::__not_implemented!($plugin, Cleanup, cleanup_is_implemented_but_not_exported);
    };
    ($plugin:ty, cleanup, map) => {
        $crate::__export_base!($plugin);
        $crate::__export_role!($plugin, Cleanup, cleans_up, export_cleans_up);
        $crate::__export_role!($plugin, Mapper, maps, export_maps);
    };
}

/// The roles of every plugin that reconciles.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_base {
    ($plugin:ty) => {
        $crate::__export_role!($plugin, Reconciler, describes, export_describes);
        $crate::__export_role!($plugin, Reconciler, reconciles, export_reconciles);
    };
}

/// One role.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_role {
    ($plugin:ty, $role:ident, $world:ident, $export:ident) => {
        const _: () = {
            const fn implements<T: $crate::$role>() {}
            implements::<$plugin>();
        };
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            type Exported = $crate::__private::Exported<$plugin>;
    $crate::__private::wit::$world::$export!(Exported with_types_in $crate::__private::wit::$world);
        };
    };
}

/// Two candidates for one function, if the type has the trait: then the compiler cannot choose,
/// and its message names the trait, whose name is the message.
#[doc(hidden)]
#[macro_export]
macro_rules! __not_implemented {
    ($plugin:ty, $role:ident, $message:ident) => {
        const _: () = {
            #[allow(non_camel_case_types, reason = "its name is the compiler's message")]
            trait $message<Marker> {
                fn check() {}
            }
            struct Implemented;
            impl<T: ?Sized> $message<()> for T {}
            impl<T: ?Sized + $crate::$role> $message<Implemented> for T {}
            let _ = <$plugin as $message<_>>::check;
        };
    };
}
