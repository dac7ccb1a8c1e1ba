//! The interpreter: walks the tree and writes the prompt.
//!
//! It reads nothing but the tree, the variables it was given and the clock it was handed. Every statement and
//! expression costs a step and a level of depth; every byte emitted is counted, also those of captured text.

use super::ast::{Args, Expr, Filter, For, Macro, Name, Stmt, StmtKind, Target};
use super::call::{Call, required};
use super::error::TemplateError;
use super::filters;
use super::limits::{
    Buffer, CALL_DEPTH_MAX, Meter, OUTPUT_BYTES_MAX, Outcome, RANGE_MAX, SLOT_BYTES, fail, limit,
};
use super::methods;
use super::ops;
use super::time::strftime;
use super::value::{Loop, Namespace, Str, Value, compare, printed};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// What a statement asks of the loop around it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

type Scope = Vec<(Name, Value)>;

pub struct Interpreter<'m> {
    meter: &'m Meter,
    unix_seconds: i64,
    scopes: Vec<Scope>,
    /// The output, and on top of it the captures under way.
    outputs: Vec<String>,
    emitted: usize,
    depth: usize,
    loops: usize,
    line: u32,
    /// Every namespace made, so that the last owner is here (see the module `value`).
    namespaces: Vec<Rc<Namespace>>,
}

impl Drop for Interpreter<'_> {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            namespace.fields.take();
        }
    }
}

impl<'m> Interpreter<'m> {
    pub fn new(meter: &'m Meter, unix_seconds: i64, variables: Vec<(Name, Value)>) -> Self {
        let functions = [
            "range",
            "namespace",
            "dict",
            "raise_exception",
            "strftime_now",
        ];
        let mut globals = Scope::from(functions.map(|name| (name.into(), Value::Function(name))));
        globals.extend(variables);
        Interpreter {
            meter,
            unix_seconds,
            scopes: vec![globals],
            outputs: vec![String::new()],
            emitted: 0,
            depth: 0,
            loops: 0,
            line: 0,
            namespaces: Vec::new(),
        }
    }

    pub fn run(mut self, body: &[Stmt]) -> Outcome<String> {
        match self.body(body) {
            Ok(_) => Ok(self.outputs.pop().unwrap_or_default()),
            Err(TemplateError::Render(message)) => {
                let message = format!("line {}: {message}", self.line);
                Err(TemplateError::Render(message))
            }
            Err(other) => Err(other),
        }
    }

    fn enter(&mut self) -> Outcome<()> {
        self.meter.step(1)?;
        self.depth += 1;
        limit(self.depth > CALL_DEPTH_MAX, "calls are nested too deep")
    }

    fn emit(&mut self, text: &str) -> Outcome<()> {
        self.emitted = self.emitted.saturating_add(text.len());
        limit(self.emitted > OUTPUT_BYTES_MAX, "too much output")?;
        self.meter.work(text.len())?;
        if let Some(out) = self.outputs.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    /// Runs `body` in a new scope, its output into a value.
    fn capture(&mut self, scope: Scope, body: &[Stmt]) -> Outcome<Str> {
        self.outputs.push(String::new());
        self.scopes.push(scope);
        let result = self.body(body);
        self.scopes.pop();
        let text = self.outputs.pop().unwrap_or_default();
        result?;
        Str::made(self.meter, text)
    }

    // --- statements

    fn body(&mut self, body: &[Stmt]) -> Outcome<Flow> {
        self.enter()?;
        let mut flow = Flow::Next;
        for stmt in body {
            self.line = stmt.line;
            self.meter.step(1)?;
            flow = self.statement(&stmt.kind)?;
            if flow != Flow::Next {
                break;
            }
        }
        self.depth -= 1;
        Ok(flow)
    }

    fn statement(&mut self, stmt: &StmtKind) -> Outcome<Flow> {
        match stmt {
            StmtKind::Text(text) => self.emit(text)?,
            StmtKind::Print(expr) => match self.eval(expr)? {
                Value::Str(s) => self.emit(&s)?,
                value => self.emit(&printed(self.meter, &value)?)?,
            },
            StmtKind::Do(expr) => drop(self.eval(expr)?),
            StmtKind::If(branches) => {
                for (condition, body) in branches {
                    let holds = match condition {
                        Some(condition) => self.eval(condition)?.truth(),
                        None => true,
                    };
                    if holds {
                        return self.body(body);
                    }
                }
            }
            StmtKind::For(stmt) => self.for_loop(stmt)?,
            StmtKind::Set(target, value) => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(name, filters, body) => {
                let value = self.filtered(filters, body)?;
                self.assign(&Target::Name(Arc::clone(name)), value)?;
            }
            StmtKind::FilterBlock(filters, body) => {
                let value = self.filtered(filters, body)?;
                self.emit(&printed(self.meter, &value)?)?;
            }
            StmtKind::With(pairs, body) => {
                let mut values = Vec::new();
                for (target, value) in pairs {
                    values.push((target, self.eval(value)?));
                }
                self.scopes.push(Vec::new());
                for (target, value) in values {
                    self.assign(target, value)?;
                }
                let flow = self.body(body);
                self.scopes.pop();
                return flow;
            }
            StmtKind::Macro(definition) => {
                let value = Value::Macro(Arc::clone(definition), self.scopes.len());
                self.assign(&Target::Name(Arc::clone(&definition.name)), value)?;
            }
            StmtKind::Call(has_params, body, expr) => {
                if *has_params {
                    return fail("a call block with parameters is not supported");
                }
                // The text is made before the call: it sees the scope it was written in.
                let text = self.capture(Vec::new(), body)?;
                let scope = vec![("caller".into(), Value::Caller(text))];
                self.scopes.push(scope);
                let result = self.eval(expr);
                self.scopes.pop();
                self.emit(&printed(self.meter, &result?)?)?;
            }
            StmtKind::Inline(body) => return self.body(body),
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Loader(tag) => {
                return fail(format!("'{tag}' is refused: a template stands alone"));
            }
        }
        Ok(Flow::Next)
    }

    fn for_loop(&mut self, stmt: &For) -> Outcome<()> {
        let mut items = self.eval(&stmt.iter)?.iterate(self.meter)?;
        if let Some(filter) = &stmt.filter {
            let mut kept = Vec::new();
            for item in &items.items {
                self.scopes.push(Vec::new());
                self.assign(&stmt.target, item.clone())?;
                let holds = self.eval(filter)?.truth();
                self.scopes.pop();
                if holds {
                    kept.push(item.clone());
                }
            }
            items = Value::list(self.meter, kept)?.iterate(self.meter)?;
        }
        if items.items.is_empty() {
            return match self.body(&stmt.otherwise)? {
                Flow::Next => Ok(()),
                _ => fail("'break' in the else of a loop"),
            };
        }
        let state = Rc::new(Loop {
            items: Rc::clone(&items),
            index: Cell::new(0),
            nesting: self.loops,
        });
        self.loops += 1;
        let loop_name: Name = "loop".into();
        for (index, item) in items.items.iter().enumerate() {
            // A turn of the loop makes a scope: dearer than an expression.
            self.meter.step(4)?;
            state.index.set(index);
            let state = Value::Loop(Rc::clone(&state));
            self.scopes.push(vec![(Arc::clone(&loop_name), state)]);
            self.assign(&stmt.target, item.clone())?;
            let flow = self.body(&stmt.body);
            self.scopes.pop();
            if flow? == Flow::Break {
                break;
            }
        }
        self.loops -= 1;
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value) -> Outcome<()> {
        self.meter.step(1)?;
        match target {
            Target::Name(name) => {
                let Some(scope) = self.scopes.last_mut() else {
                    return Ok(());
                };
                self.meter.step(scope.len() / 8)?;
                match scope.iter_mut().find(|(have, _)| have == name) {
                    Some((_, slot)) => *slot = value,
                    None => scope.push((Arc::clone(name), value)),
                }
                Ok(())
            }
            Target::Field(name, field) => match self.lookup(name)? {
                Value::Namespace(namespace) => self.set_field(&namespace, field, value),
                other => fail(format!("cannot set a field of a {}", other.type_name())),
            },
            Target::Tuple(targets) => {
                let items = value.defined()?.iterate(self.meter)?;
                let (found, wanted) = (items.items.len(), targets.len());
                if found != wanted {
                    return fail(format!("cannot unpack {found} values into {wanted}"));
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
                Ok(())
            }
        }
    }

    fn set_field(&self, namespace: &Namespace, field: &Name, value: Value) -> Outcome<()> {
        let mut fields = namespace.fields.borrow_mut();
        self.meter.step(fields.len() / 8)?;
        match fields.iter_mut().find(|(have, ..)| have == field) {
            // The old value is dropped outside of the borrow: nothing it owns may come back here.
            Some((_, slot, _)) => {
                let old = std::mem::replace(slot, value);
                drop(fields);
                drop(old);
            }
            None => {
                let charge = self.meter.charge(2 * SLOT_BYTES)?;
                fields.push((Arc::clone(field), value, charge));
            }
        }
        Ok(())
    }

    fn lookup(&self, name: &Name) -> Outcome<Value> {
        let mut seen = 0;
        for scope in self.scopes.iter().rev() {
            seen += 1 + scope.len();
            if let Some((_, value)) = scope.iter().find(|(have, _)| have == name) {
                self.meter.step(seen / 8)?;
                return Ok(value.clone());
            }
        }
        self.meter.step(seen / 8)?;
        Ok(Value::Undefined(Arc::clone(name)))
    }

    // --- expressions

    fn eval(&mut self, expr: &Expr) -> Outcome<Value> {
        self.enter()?;
        let value = self.expression(expr)?;
        self.depth -= 1;
        Ok(value)
    }

    fn eval_all(&mut self, exprs: &[Expr]) -> Outcome<Vec<Value>> {
        exprs.iter().map(|e| self.eval(e)).collect()
    }

    fn expression(&mut self, expr: &Expr) -> Outcome<Value> {
        match expr {
            Expr::None => Ok(Value::None),
            Expr::Bool(b) => Ok(Value::Bool(*b)),
            Expr::Int(i) => Ok(Value::Int(*i)),
            Expr::Float(f) => Ok(Value::Float(*f)),
            Expr::Str(text) => Ok(Value::Str(Str::Given(Arc::clone(text)))),
            Expr::Name(name) => self.lookup(name),
            Expr::List(items) => Value::list(self.meter, self.eval_all(items)?),
            Expr::Tuple(items) => Value::tuple(self.meter, self.eval_all(items)?),
            Expr::Dict(entries) => {
                let mut values = Vec::new();
                for (key, value) in entries {
                    values.push((self.eval(key)?, self.eval(value)?));
                }
                Value::dict(self.meter, values)
            }
            Expr::Attr(object, name) => {
                let object = self.eval(object)?;
                self.attribute(&object, name)
            }
            Expr::Item(object, index) => {
                let object = self.eval(object)?;
                let index = self.eval(index)?;
                self.item(&object, &index)
            }
            Expr::Slice(object, parts) => {
                let object = self.eval(object)?;
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                    let part = part.as_ref().map(|part| self.eval(part)).transpose()?;
                    let part = part.filter(|part| !part.is_none());
                    *bound = part.map(|part| part.int_arg("a slice")).transpose()?;
                }
                ops::slice(self.meter, &object, bounds)
            }
            Expr::Call(callee, args) => self.call(callee, args),
            Expr::Filter(value, filter) => {
                let value = self.eval(value)?;
                self.filter(filter, value)
            }
            Expr::Test(value, test) => {
                let name = &*test.name;
                let value = self.eval(value)?;
                let args = self.args(&test.args)?;
                filters::test(self.meter, name, &value, &args.positional).map(Value::Bool)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value)?.truth())),
            Expr::Neg(value) => ops::negate(self.eval(value)?),
            Expr::Pos(value) => self.eval(value)?.defined(),
            Expr::Binary(op, sides) => {
                ops::binary(self.meter, op, self.eval(&sides.0)?, self.eval(&sides.1)?)
            }
            Expr::And(sides) | Expr::Or(sides) => {
                let left = self.eval(&sides.0)?;
                if left.truth() == matches!(expr, Expr::Or(_)) {
                    return Ok(left);
                }
                self.eval(&sides.1)
            }
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (op, right) in rest {
                    let right = self.eval(right)?;
                    if !compare(self.meter, op, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::Cond(sides, otherwise) => {
                if self.eval(&sides.1)?.truth() {
                    self.eval(&sides.0)
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise)
                } else {
                    Ok(Value::undefined("the value of an 'if' without 'else'"))
                }
            }
        }
    }

    fn attribute(&self, object: &Value, name: &Name) -> Outcome<Value> {
        match object {
            Value::Undefined(missing) => fail(format!("'{missing}' is undefined")),
            Value::Loop(state) => Ok(loop_field(state, name)),
            Value::Namespace(_) => filters::lookup(self.meter, object, name),
            _ => match (methods::find(object, name), object) {
                // As in Python, a method hides an entry of the same name.
                (Some(method), _) => Value::method(object, method),
                (None, Value::Dict(dict)) => {
                    let key = Value::Str(Str::Given(Arc::clone(name)));
                    let found = dict.get(self.meter, &key)?.cloned();
                    Ok(found.unwrap_or_else(|| Value::Undefined(Arc::clone(name))))
                }
                _ => Ok(Value::Undefined(Arc::clone(name))),
            },
        }
    }

    fn item(&self, object: &Value, index: &Value) -> Outcome<Value> {
        // Python's: from the end where it is negative.
        let at = |index: i64, len: usize| {
            let from_end = if index < 0 { len as i64 } else { 0 };
            usize::try_from(index.checked_add(from_end)?).ok()
        };
        match (object, index.as_int()) {
            (Value::Undefined(missing), _) => fail(format!("'{missing}' is undefined")),
            (Value::Dict(dict), _) => {
                let missing = || Value::undefined(index.as_str().unwrap_or("an item"));
                let found = dict.get(self.meter, index)?.cloned();
                Ok(found.unwrap_or_else(missing))
            }
            (Value::List(list), Some(index)) => {
                let item = at(index, list.items.len()).and_then(|i| list.items.get(i));
                Ok(item.cloned().unwrap_or_else(|| Value::undefined("an item")))
            }
            (Value::Str(s), Some(index)) => {
                self.meter.work(s.len())?;
                match at(index, s.chars().count()).and_then(|i| s.chars().nth(i)) {
                    Some(c) => Value::text(self.meter, c.to_string()),
                    None => Ok(Value::undefined("a character")),
                }
            }
            _ => match index.as_str() {
                Some(name) if name.len() <= 64 => self.attribute(object, &name.into()),
                _ => Ok(Value::undefined("an item")),
            },
        }
    }

    fn args(&mut self, args: &Args) -> Outcome<Call> {
        let positional = self.eval_all(&args.positional)?;
        let mut named = Vec::new();
        for (name, value) in &args.named {
            named.push((Arc::clone(name), self.eval(value)?));
        }
        Ok(Call { positional, named })
    }

    fn filter(&mut self, filter: &Filter, value: Value) -> Outcome<Value> {
        let args = self.args(&filter.args)?;
        filters::apply(self.meter, &filter.name, value, args, 0)
    }

    /// What `body` writes, through all of `filters`.
    fn filtered(&mut self, filters: &[Filter], body: &[Stmt]) -> Outcome<Value> {
        let mut value = Value::Str(self.capture(Vec::new(), body)?);
        for filter in filters {
            value = self.filter(filter, value)?;
        }
        Ok(value)
    }

    fn call(&mut self, callee: &Expr, args: &Args) -> Outcome<Value> {
        if let Expr::Attr(object, name) = callee {
            let object = self.eval(object)?;
            if let (Value::Loop(state), "cycle") = (&object, &**name) {
                let call = self.args(args)?;
                let count = call.positional.len().max(1);
                let item = call.positional.get(state.index.get() % count).cloned();
                return required(item, "cycle");
            }
            let function = self.attribute(&object, name)?;
            if matches!(function, Value::Undefined(_)) {
                return fail(format!("a {} has no method '{name}'", object.type_name()));
            }
            let call = self.args(args)?;
            return self.invoke(function, call);
        }
        let function = self.eval(callee)?;
        let call = self.args(args)?;
        self.invoke(function, call)
    }

    fn invoke(&mut self, function: Value, call: Call) -> Outcome<Value> {
        match function {
            Value::Method(method) => methods::call(self.meter, &method.receiver, method.name, call),
            Value::Macro(definition, scopes) => self.invoke_macro(&definition, scopes, call),
            Value::Caller(text) => {
                call.none("caller")?;
                Ok(Value::Str(text))
            }
            Value::Function(function) => self.builtin(function, call),
            Value::Undefined(name) => fail(format!("'{name}' is undefined")),
            other => fail(format!("a {} cannot be called", other.type_name())),
        }
    }

    /// A macro sees the scopes it was defined in, then its arguments.
    fn invoke_macro(&mut self, definition: &Macro, visible: usize, call: Call) -> Outcome<Value> {
        let (macro_name, count) = (&definition.name, definition.params.len());
        if call.positional.len() > count {
            return fail(format!("macro '{macro_name}' takes {count} arguments"));
        }
        let caller = self.lookup(&"caller".into())?;
        let hidden = self.scopes.split_off(visible.min(self.scopes.len()));
        let mut scope: Scope = Vec::new();
        if let Value::Caller(_) = caller {
            scope.push(("caller".into(), caller));
        }
        let mut positional = call.positional.into_iter();
        let mut named = call.named;
        for (name, default) in &definition.params {
            let given = positional.next();
            let by_name = named.iter().position(|(have, _)| have == name);
            let by_name = by_name.map(|at| named.swap_remove(at).1);
            let value = match (given.or(by_name), default) {
                (Some(value), _) => value,
                (None, Some(default)) => {
                    // A default may use the parameters before it.
                    self.scopes.push(scope);
                    let value = self.eval(default);
                    scope = self.scopes.pop().unwrap_or_default();
                    value?
                }
                (None, None) => Value::Undefined(Arc::clone(name)),
            };
            scope.push((Arc::clone(name), value));
        }
        if let Some((name, _)) = named.first() {
            return fail(format!("macro '{macro_name}' has no argument '{name}'"));
        }
        let loops = std::mem::take(&mut self.loops);
        let text = self.capture(scope, &definition.body)?;
        self.loops = loops;
        self.scopes.extend(hidden);
        Ok(Value::Str(text))
    }

    fn builtin(&mut self, name: &str, call: Call) -> Outcome<Value> {
        match name {
            "raise_exception" => {
                let [message] = call.bind(name, ["message"])?;
                let message = printed(self.meter, &message.unwrap_or(Value::None))?;
                Err(TemplateError::Raised(message))
            }
            "strftime_now" => {
                let format = call.one(name, "format")?;
                let format = format.str_arg(name)?;
                self.meter.work(format.len().saturating_mul(8))?;
                let mut out = Buffer::new(self.meter);
                strftime(self.unix_seconds, format, &mut out)?;
                Value::written(out)
            }
            "range" => {
                let [first, second, step] = call.bind(name, ["start", "stop", "step"])?;
                let first = required(first, name)?.int_arg(name)?;
                let (start, stop) = match second {
                    Some(stop) => (first, stop.int_arg(name)?),
                    None => (0, first),
                };
                let step = step.map_or(Ok(1), |s| s.int_arg(name))?;
                range(self.meter, start, stop, step)
            }
            "dict" => {
                if !call.positional.is_empty() {
                    return fail("dict takes named arguments");
                }
                let named = call.named.into_iter();
                let entries = named.map(|(k, v)| (Value::Str(Str::Given(k)), v));
                Value::dict(self.meter, entries.collect())
            }
            _ => {
                let namespace = Rc::new(Namespace::default());
                // A little for the namespace itself, which lives until the end.
                let charge = self.meter.charge(4 * SLOT_BYTES)?;
                let own = ("".into(), Value::None, charge);
                namespace.fields.borrow_mut().push(own);
                self.namespaces.push(Rc::clone(&namespace));
                if let [Value::Dict(dict)] = call.positional.as_slice() {
                    for (key, value) in &dict.entries {
                        let key = key.str_arg("namespace")?;
                        self.meter.charge(key.len()).map(drop)?;
                        self.set_field(&namespace, &key.into(), value.clone())?;
                    }
                } else if !call.positional.is_empty() {
                    return fail("namespace takes named arguments");
                }
                for (name, value) in &call.named {
                    self.set_field(&namespace, name, value.clone())?;
                }
                Ok(Value::Namespace(namespace))
            }
        }
    }
}

fn range(meter: &Meter, start: i64, stop: i64, step: i64) -> Outcome<Value> {
    if step == 0 {
        return fail("range needs a step other than zero");
    }
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let count = ops::count(start, stop, step);
    limit(count > i128::from(RANGE_MAX), "a range is too long")?;
    meter.step(count as usize / 4)?;
    meter.fits(count as usize * SLOT_BYTES)?;
    let values = (0..count).map(|i| Value::Int((start + i * step) as i64));
    Value::list(meter, values.collect())
}

fn loop_field(state: &Loop, name: &Name) -> Value {
    let (index, len) = (state.index.get(), state.items.items.len());
    let neighbour = |at: Option<usize>| {
        let item = at.and_then(|at| state.items.items.get(at)).cloned();
        item.unwrap_or_else(|| Value::Undefined(Arc::clone(name)))
    };
    match &**name {
        "index" => Value::int(index + 1),
        "index0" => Value::int(index),
        "revindex" => Value::int(len - index),
        "revindex0" => Value::int(len - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => Value::int(len),
        "depth" => Value::int(state.nesting + 1),
        "depth0" => Value::int(state.nesting),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(index.checked_add(1)),
        _ => Value::Undefined(Arc::clone(name)),
    }
}
