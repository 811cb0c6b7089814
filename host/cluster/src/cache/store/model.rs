//! The store against a model of the server, in any interleaving of streams, lists and answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use proptest::prelude::*;
use reeve_core::gvk::Gvk;
use reeve_core::ids::{ObjectName, ResourceVersion, Uid};
use reeve_core::object::{ManagedFields, Object, SharedObject};

use super::super::coverage::{Coverage, Membership};
use super::*;

/// The server's history: what happened at each version.
#[derive(Default)]
struct Server {
    history: Vec<(ResourceVersion, Happened)>,
    lives: u32,
}

#[derive(Clone)]
enum Happened {
    Set(SharedObject),
    Deleted(SharedObject),
}

/// A stream that was opened, and what it has told.
struct Watcher {
    coverage: Coverage,
    /// The last version that it told; `None` before its first list.
    at: Option<ResourceVersion>,
}

struct World {
    server: Server,
    store: Store,
    watchers: BTreeMap<StreamId, Watcher>,
    opened: u32,
    /// Answers of writes that are under way, in no order.
    answers: Vec<Happened>,
    /// What the changes add up to.
    told: BTreeMap<ObjectName, SharedObject>,
    /// The newest version that was told of a UID.
    newest: HashMap<Uid, ResourceVersion>,
    /// UIDs of which the store heard for certain that they are gone.
    gone: BTreeSet<Uid>,
}

fn object(name: usize, life: u32, version: u64, label: usize) -> SharedObject {
    let (namespace, label) = (["a", "b"][name % 2], ["x", "y", "z"][label % 3]);
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"o{name}","uid":"u{life}","resourceVersion":"{version}","labels":{{"app":"{label}"}}}}}}"#
    );
    Arc::new(Object::parse(&Gvk::new("", "v1", "ConfigMap"), &json, ManagedFields::Strip).unwrap())
}

fn coverage(which: usize) -> Coverage {
    let (namespace, labels): (Option<&str>, &str) = [
        (None, ""),
        (None, "app=x"),
        (Some("a"), ""),
        (Some("a"), "app in (x,y)"),
        (None, "app!=x"),
        (None, "app=y"),
    ][which % 6];
    Coverage { namespace: namespace.map(Into::into), labels: labels.parse().unwrap(), fields: None }
}

fn within(coverage: &Coverage, object: &Object) -> bool {
    coverage.contains(object) == Membership::Certain(true)
}

impl Server {
    fn now(&self) -> ResourceVersion {
        self.history.last().map_or(ResourceVersion(1), |(version, _)| *version)
    }

    /// Everything as it was at a version.
    fn state(&self, at: ResourceVersion) -> BTreeMap<ObjectName, SharedObject> {
        let mut state = BTreeMap::new();
        for (_, happened) in self.history.iter().take_while(|(version, _)| *version <= at) {
            match happened {
                Happened::Set(object) => state.insert(object.meta().name.clone(), Arc::clone(object)),
                Happened::Deleted(object) => state.remove(&object.meta().name),
            };
        }
        state
    }

    /// Creates, changes, or deletes one of a few objects.
    fn change(&mut self, name: usize, label: usize, delete: bool) -> Happened {
        let version = ResourceVersion(self.now().0 + 1 + (label as u64 % 2));
        let state = self.state(self.now());
        let before = state.values().find(|known| *known.meta().name.name == format!("o{name}"));
        let happened = match before {
            // The last state, at the version of the delete, as the server sends it.
            Some(known) if delete => {
                let (life, label) = (life(known), usize::from(known.meta().label("app") != Some("x")));
                Happened::Deleted(object(name, life, version.0, label))
            }
            Some(known) => Happened::Set(object(name, life(known), version.0, label)),
            None => {
                self.lives += 1;
                Happened::Set(object(name, self.lives, version.0, label))
            }
        };
        self.history.push((version, happened.clone()));
        happened
    }
}

fn life(object: &Object) -> u32 {
    object.meta().uid.as_str()[1..].parse().unwrap()
}

impl World {
    fn new() -> Self {
        Self {
            server: Server::default(),
            store: Store::default(),
            watchers: BTreeMap::new(),
            opened: 0,
            answers: Vec::new(),
            told: BTreeMap::new(),
            newest: HashMap::new(),
            gone: BTreeSet::new(),
        }
    }

    fn step(&mut self, (what, a, b): (u8, u8, u8)) {
        let (a, b) = (usize::from(a), usize::from(b));
        match what % 10 {
            0..=2 => {
                let happened = self.server.change(a % 4, b, b % 5 == 0);
                if b % 2 == 0 {
                    self.answers.push(happened);
                }
            }
            3 if !self.answers.is_empty() => {
                let answer = self.answers.swap_remove(a % self.answers.len());
                self.answer(answer);
            }
            4 if self.watchers.len() < 4 => {
                self.opened += 1;
                let coverage = coverage(a);
                self.store.open(StreamId(self.opened), coverage.clone());
                self.watchers.insert(StreamId(self.opened), Watcher { coverage, at: None });
            }
            5 => self.list(a, b),
            6 if b % 4 == 0 => self.close(a),
            _ => {
                self.tell_next(a, b % 3 == 0);
            }
        }
        self.check();
    }

    fn pick(&self, which: usize) -> Option<StreamId> {
        let ids: Vec<_> = self.watchers.keys().copied().collect();
        (!ids.is_empty()).then(|| ids[which % ids.len()])
    }

    fn answer(&mut self, answer: Happened) {
        let outcome = match answer {
            Happened::Set(object) => self.store.upsert(Source::Write, object),
            Happened::Deleted(object) => {
                self.gone.insert(object.meta().uid.clone());
                self.store.deleted(&object.meta().name, &object.meta().uid)
            }
        };
        self.hear(outcome);
    }

    /// A list not older than what the stream told; its first may come from a server that lags.
    fn list(&mut self, which: usize, how_late: usize) {
        let Some(id) = self.pick(which) else { return };
        let watcher = &self.watchers[&id];
        let from = watcher.at.unwrap_or(ResourceVersion(1));
        let versions: Vec<_> = [from]
            .into_iter()
            .chain(self.server.history.iter().map(|(version, _)| *version).filter(|version| *version > from))
            .collect();
        let version = versions[versions.len() - 1 - how_late % versions.len().min(6)];
        let mut objects = self.server.state(version);
        objects.retain(|_, object| within(&watcher.coverage, object));
        if !watcher.coverage.selective() {
            let lost = self.told.values().filter(|known| {
                let here = watcher
                    .coverage
                    .namespace
                    .as_ref()
                    .is_none_or(|n| Some(n) == known.meta().name.namespace.as_ref());
                here && watcher.at.is_some()
                    && !objects.contains_key(&known.meta().name)
                    && known.meta().resource_version <= version
            });
            self.gone.extend(lost.map(|known| known.meta().uid.clone()).collect::<Vec<_>>());
        }
        for delta in self.store.replace(id, Listed { objects, version, rewound: false }) {
            self.hear(Outcome::Changed(delta));
        }
        self.watchers.get_mut(&id).unwrap().at = Some(version);
    }

    fn close(&mut self, which: usize) {
        let Some(id) = self.pick(which) else { return };
        self.watchers.remove(&id);
        self.store.close(id);
        // What nobody watches any more goes without a change, and may come again.
        let (store, newest) = (&self.store, &mut self.newest);
        self.told.retain(|name, object| {
            let kept = store.get(name).is_some();
            if !kept {
                newest.remove(&object.meta().uid);
            }
            kept
        });
    }

    /// The next event of a stream, or a bookmark if there is none for it.
    fn tell_next(&mut self, which: usize, bookmark: bool) -> bool {
        let Some(id) = self.pick(which) else { return false };
        let watcher = self.watchers.get_mut(&id).unwrap();
        let Some(at) = watcher.at else { return false };
        let before = self.server.state(at);
        let Some((version, happened)) =
            self.server.history.iter().find(|(version, _)| *version > at).cloned()
        else {
            return false;
        };
        watcher.at = Some(version);
        let (Happened::Set(object) | Happened::Deleted(object)) = &happened;
        let was = before.get(&object.meta().name).filter(|old| within(&watcher.coverage, old));
        let is = matches!(happened, Happened::Set(_)) && within(&watcher.coverage, object);
        let outcome = if is {
            self.store.upsert(Source::Stream(id), Arc::clone(object))
        } else if let Some(was) = was {
            // Left the selector, or deleted: the last state in it, at the version of the change.
            let label =
                ["x", "y", "z"].iter().position(|label| was.meta().label("app") == Some(label)).unwrap();
            let number: usize = was.meta().name.name[1..].parse().unwrap();
            let last = self::object(number, life(was), version.0, label);
            if !watcher.coverage.selective() {
                self.gone.insert(was.meta().uid.clone());
            }
            self.store.remove(id, last.meta())
        } else {
            if bookmark {
                self.store.advance(id, version);
            }
            return true;
        };
        self.store.advance(id, version);
        self.hear(outcome);
        true
    }

    /// Each change starts from what was told before, and never goes back.
    fn hear(&mut self, outcome: Outcome) {
        let Outcome::Changed(Delta { old, new }) = outcome else { return };
        let name = old.as_ref().or(new.as_ref()).unwrap().meta().name.clone();
        let known = self.told.get(&name);
        assert_eq!(
            known.map(|known| known.meta()),
            old.as_ref().map(|old| old.meta()),
            "{name}: not from what was told"
        );
        match new {
            Some(new) => {
                let meta = new.meta();
                let newest = self.newest.insert(meta.uid.clone(), meta.resource_version);
                assert!(
                    newest.is_none_or(|newest| newest < meta.resource_version),
                    "{name} went back: {newest:?} {meta:?}"
                );
                self.told.insert(name, new);
            }
            None => {
                assert!(self.told.remove(&name).is_some(), "{name}: told gone twice");
            }
        }
    }

    fn check(&self) {
        let kept: Vec<_> = self.store.sorted.values().map(|object| object.meta()).collect();
        assert_eq!(
            kept,
            self.told.values().map(|object| object.meta()).collect::<Vec<_>>(),
            "told is not kept"
        );
        for meta in kept {
            assert!(!self.gone.contains(&meta.uid), "{} came back", meta.name);
        }
        assert_eq!(self.store.len(), self.store.sorted.len());
        let bytes: usize = self.store.sorted.values().map(|object| object.size()).sum();
        assert_eq!(self.store.bytes(), bytes);
    }

    /// Everything that is under way arrives.
    fn settle(&mut self) {
        while let Some(answer) = self.answers.pop() {
            self.answer(answer);
            self.check();
        }
        for which in 0..self.watchers.len() {
            if self.watchers.values().nth(which).unwrap().at.is_none() {
                self.list(which, 0);
                self.check();
            }
            while self.tell_next(which, true) {
                self.check();
            }
        }
        let mut truth = self.server.state(self.server.now());
        truth.retain(|_, object| self.watchers.values().any(|watcher| within(&watcher.coverage, object)));
        let meta = |objects: &BTreeMap<ObjectName, SharedObject>| {
            objects.values().map(|object| object.meta().clone()).collect::<Vec<_>>()
        };
        assert_eq!(meta(&self.told), meta(&truth), "not the server's truth");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// The cache comes to the server's truth, never goes back, never brings back what is gone, and
    /// tells each change once.
    #[test]
    fn the_store_comes_to_the_servers_truth(steps in prop::collection::vec(any::<(u8, u8, u8)>(), 0..120)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.settle();
    }
}
