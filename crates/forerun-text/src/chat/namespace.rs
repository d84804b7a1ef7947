//! `namespace`: the variables of a template that outlive a loop.
//!
//! The engine's own namespace shows, compares and serialises all that it holds, which has no end once it holds itself.
//! This one is opaque, as Python's is, and what is put into it is measured, so that nothing in it nests without bound.
//! The engine assigns to its own namespaces only: [`super::source`] turns assignments into calls of [`ASSIGN`].

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::value::{DynObject, Kwargs, Object, ObjectRepr, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};

use super::size::Size;

/// The method that sets a variable: name, value.
pub(super) const ASSIGN: &str = "__setattr__";
/// Fuel that a namespace costs.
const COST: u64 = 8;

/// The namespaces of one rendering.
#[derive(Clone, Default)]
pub(super) struct Namespaces(Arc<Mutex<Vec<Arc<Namespace>>>>);

impl Namespaces {
    pub(super) fn install(&self, environment: &mut Environment<'static>) {
        let all = self.clone();
        let make = move |state: &State, from: Option<Value>, named: Kwargs| -> Result<Value, Error> {
            state.consume_fuel(COST)?;
            let number = lock(&all.0).len();
            let made = Arc::new(Namespace { number, values: Mutex::default() });
            if let Some(from) = from {
                if from.kind() != ValueKind::Map {
                    let message = format!("namespace: found {}, expected a map", from.kind());
                    return Err(Error::new(ErrorKind::InvalidOperation, message));
                }
                for key in from.try_iter()? {
                    made.set(state, &key.to_string(), from.get_item(&key)?)?;
                }
            }
            for name in named.args() {
                made.set(state, name, named.get(name)?)?;
            }
            lock(&all.0).push(made.clone());
            Ok(Value::from_dyn_object(made))
        };
        environment.add_function("namespace", make);
    }

    /// Forgets what they hold: namespaces that hold one another would otherwise keep one another alive.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        for namespace in all {
            drop(std::mem::take(&mut *lock(&namespace.values)));
        }
    }
}

struct Namespace {
    /// What tells it from the others of its rendering.
    number: usize,
    values: Mutex<BTreeMap<String, Value>>,
}

/// A lock whose holder panicked protects a map that is whole all the same.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Namespace {
    fn set(&self, state: &State, name: &str, value: Value) -> Result<(), Error> {
        Size::of(state, &value)?;
        let old = lock(&self.values).insert(name.to_owned(), value);
        drop(old);
        Ok(())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<Namespace>")
    }
}

impl Object for Namespace {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        lock(&self.values).get(key.as_str()?).cloned()
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if method == ASSIGN {
            let (name, value): (String, Value) = from_args(args)?;
            self.set(state, &name, value)?;
            return Ok(Value::from(()));
        }
        match self.get_value(&Value::from(method)) {
            Some(value) => value.call(state, args),
            None => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.number.cmp(&other.downcast_ref::<Self>()?.number))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
