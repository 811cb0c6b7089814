//! The generated bindings of the contract: the only module that names WIT types together with
//! `crate::role`.
//!
//! There is one world per role, and each world has its own export macro, so that a component
//! exports exactly the roles whose macro was used. All share the imports of `describes`.

/// The role that every component has, and the imports that all roles share.
pub mod describes {
    wit_bindgen::generate!({
        world: "describes",
        path: "wit",
        pub_export_macro: true,
        export_macro_name: "export_describes",
    });
}

/// The role that reconciles.
pub mod reconciles {
    wit_bindgen::generate!({
        world: "reconciles",
        path: "wit",
        pub_export_macro: true,
        export_macro_name: "export_reconciles",
        with: { "reeve:plugin/host@0.1.0": crate::wit::describes::reeve::plugin::host },
    });
}

/// The role that cleans up.
pub mod cleans_up {
    wit_bindgen::generate!({
        world: "cleans-up",
        path: "wit",
        pub_export_macro: true,
        export_macro_name: "export_cleans_up",
        with: { "reeve:plugin/host@0.1.0": crate::wit::describes::reeve::plugin::host },
    });
}

/// The role that maps.
pub mod maps {
    wit_bindgen::generate!({
        world: "maps",
        path: "wit",
        pub_export_macro: true,
        export_macro_name: "export_maps",
        with: { "reeve:plugin/host@0.1.0": crate::wit::describes::reeve::plugin::host },
    });
}
