//! The interpreter: walks the tree and writes the prompt.
//!
//! It reads nothing but the tree, the variables it was given and the clock it was handed. Every statement and
//! expression costs a step and a level of depth; every byte emitted is counted, also those of captured text.

use super::ast::{Args, CompareOp, Expr, Filter, For, Macro, Name, Stmt, StmtKind, Target};
use super::call::{Call, required};
use super::error::TemplateError;
use super::filters;
use super::limits::{
    Buffer, CALL_DEPTH_MAX, Meter, OUTPUT_BYTES_MAX, Outcome, RANGE_MAX, SLOT_BYTES, fail, limit,
};
use super::methods;
use super::ops;
use super::time::strftime;
use super::value::{Function, Loop, Namespace, Value, contains, equal, find_key, order, print};
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
        let mut globals: Scope = [
            ("range", Function::Range),
            ("namespace", Function::Namespace),
            ("dict", Function::Dict),
            ("raise_exception", Function::RaiseException),
            ("strftime_now", Function::StrftimeNow),
        ]
        .into_iter()
        .map(|(name, function)| (name.into(), Value::Function(function)))
        .collect();
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
            Err(TemplateError::Render(message)) => Err(TemplateError::Render(format!(
                "line {}: {message}",
                self.line
            ))),
            Err(other) => Err(other),
        }
    }

    fn enter(&mut self) -> Outcome<()> {
        self.meter.step(1)?;
        self.depth += 1;
        if self.depth > CALL_DEPTH_MAX {
            Err(limit("calls are nested too deep"))
        } else {
            Ok(())
        }
    }

    fn emit(&mut self, text: &str) -> Outcome<()> {
        self.emitted = self.emitted.saturating_add(text.len());
        if self.emitted > OUTPUT_BYTES_MAX {
            return Err(limit("too much output"));
        }
        self.meter.work(text.len())?;
        if let Some(out) = self.outputs.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    /// Runs `body` in a new scope, its output into a value.
    fn capture(&mut self, scope: Scope, body: &[Stmt]) -> Outcome<Value> {
        self.outputs.push(String::new());
        self.scopes.push(scope);
        let result = self.body(body);
        self.scopes.pop();
        let text = self.outputs.pop().unwrap_or_default();
        result?;
        Value::text(self.meter, text)
    }

    // --- statements

    fn body(&mut self, body: &[Stmt]) -> Outcome<Flow> {
        self.enter()?;
        for stmt in body {
            self.line = stmt.line;
            self.meter.step(1)?;
            let flow = self.statement(&stmt.kind)?;
            if flow != Flow::Next {
                self.depth -= 1;
                return Ok(flow);
            }
        }
        self.depth -= 1;
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &StmtKind) -> Outcome<Flow> {
        match stmt {
            StmtKind::Text(text) => self.emit(text)?,
            StmtKind::Print(expr) => match self.eval(expr)? {
                Value::Str(s) => self.emit(s.as_str())?,
                value => {
                    let mut out = Buffer::new(self.meter);
                    print(self.meter, &value, &mut out)?;
                    self.emit(&out.into_string())?;
                }
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
                let text = self.capture(Vec::new(), body)?;
                let value = self.filter_all(filters, text)?;
                self.assign(&Target::Name(Arc::clone(name)), value)?;
            }
            StmtKind::FilterBlock(filters, body) => {
                let text = self.capture(Vec::new(), body)?;
                let value = self.filter_all(filters, text)?;
                let mut out = Buffer::new(self.meter);
                print(self.meter, &value, &mut out)?;
                self.emit(&out.into_string())?;
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
            StmtKind::Call(block, expr) => {
                if !block.params.is_empty() {
                    return fail("a call block with parameters is not supported");
                }
                // The text is made before the call: it sees the scope it was written in.
                let Value::Str(text) = self.capture(Vec::new(), &block.body)? else {
                    return fail("call");
                };
                self.scopes
                    .push(vec![("caller".into(), Value::Caller(text))]);
                let result = self.eval(expr);
                self.scopes.pop();
                let mut out = Buffer::new(self.meter);
                print(self.meter, &result?, &mut out)?;
                self.emit(&out.into_string())?;
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
            self.scopes.push(vec![(
                Arc::clone(&loop_name),
                Value::Loop(Rc::clone(&state)),
            )]);
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
                if items.items.len() != targets.len() {
                    return fail(format!(
                        "cannot unpack {} values into {}",
                        items.items.len(),
                        targets.len()
                    ));
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
            Expr::Str(text) => Ok(Value::Str(super::value::Str::Given(Arc::clone(text)))),
            Expr::Name(name) => self.lookup(name),
            Expr::List(items) => {
                let items = self.eval_all(items)?;
                Value::list(self.meter, items)
            }
            Expr::Tuple(items) => {
                let items = self.eval_all(items)?;
                Value::tuple(self.meter, items)
            }
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
                    if let Some(part) = part {
                        *bound = match self.eval(part)? {
                            Value::None => None,
                            value => Some(value.int_arg("a slice")?),
                        };
                    }
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
                filters::test(self.meter, name, &value, args.positional).map(Value::Bool)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value)?.truth())),
            Expr::Neg(value) => ops::negate(self.eval(value)?),
            Expr::Pos(value) => self.eval(value)?.defined(),
            Expr::Binary(op, sides) => {
                let left = self.eval(&sides.0)?;
                let right = self.eval(&sides.1)?;
                ops::binary(self.meter, *op, left, right)
            }
            Expr::And(sides) => {
                let left = self.eval(&sides.0)?;
                if left.truth() {
                    self.eval(&sides.1)
                } else {
                    Ok(left)
                }
            }
            Expr::Or(sides) => {
                let left = self.eval(&sides.0)?;
                if left.truth() {
                    Ok(left)
                } else {
                    self.eval(&sides.1)
                }
            }
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first)?;
                for (op, right) in rest {
                    let right = self.eval(right)?;
                    if !self.compare(*op, &left, &right)? {
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

    fn compare(&self, op: CompareOp, a: &Value, b: &Value) -> Outcome<bool> {
        Ok(match op {
            CompareOp::Eq => equal(self.meter, a, b)?,
            CompareOp::Ne => !equal(self.meter, a, b)?,
            CompareOp::Lt => order(self.meter, a, b)?.is_lt(),
            CompareOp::Le => order(self.meter, a, b)?.is_le(),
            CompareOp::Gt => order(self.meter, a, b)?.is_gt(),
            CompareOp::Ge => order(self.meter, a, b)?.is_ge(),
            CompareOp::In => contains(self.meter, b, a)?,
            CompareOp::NotIn => !contains(self.meter, b, a)?,
        })
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
                    let key = Value::Str(super::value::Str::Given(Arc::clone(name)));
                    Ok(match find_key(self.meter, &dict.entries, &key)? {
                        Some(at) => dict.entries[at].1.clone(),
                        None => Value::Undefined(Arc::clone(name)),
                    })
                }
                _ => Ok(Value::Undefined(Arc::clone(name))),
            },
        }
    }

    fn item(&self, object: &Value, index: &Value) -> Outcome<Value> {
        let at = |len: usize| {
            let index = index.as_int()?;
            let from_start = if index < 0 {
                index.checked_add(len as i64)?
            } else {
                index
            };
            usize::try_from(from_start).ok().filter(|i| *i < len)
        };
        match object {
            Value::Undefined(missing) => fail(format!("'{missing}' is undefined")),
            Value::Dict(dict) => {
                if let Some(at) = find_key(self.meter, &dict.entries, index)? {
                    return Ok(dict.entries[at].1.clone());
                }
                Ok(Value::undefined(index.as_str().unwrap_or("an item")))
            }
            Value::List(list) if index.as_int().is_some() => {
                let item = at(list.items.len())
                    .and_then(|i| list.items.get(i))
                    .cloned();
                Ok(item.unwrap_or_else(|| Value::undefined("an item")))
            }
            Value::Str(s) if index.as_int().is_some() => {
                self.meter.work(s.as_str().len())?;
                let text = s.as_str();
                match at(text.chars().count()).and_then(|i| text.chars().nth(i)) {
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

    fn filter_all(&mut self, filters: &[Filter], mut value: Value) -> Outcome<Value> {
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
        if call.positional.len() > definition.params.len() {
            return fail(format!(
                "macro '{}' takes {} arguments",
                definition.name,
                definition.params.len()
            ));
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
            let by_name = named
                .iter()
                .position(|(have, _)| have == name)
                .map(|at| named.swap_remove(at).1);
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
            return fail(format!(
                "macro '{}' has no argument '{name}'",
                definition.name
            ));
        }
        let loops = std::mem::take(&mut self.loops);
        let text = self.capture(scope, &definition.body)?;
        self.loops = loops;
        self.scopes.extend(hidden);
        Ok(text)
    }

    fn builtin(&mut self, function: Function, call: Call) -> Outcome<Value> {
        match function {
            Function::RaiseException => {
                let [message] = call.bind("raise_exception", ["message"])?;
                let mut out = Buffer::new(self.meter);
                print(self.meter, &message.unwrap_or(Value::None), &mut out)?;
                Err(TemplateError::Raised(out.into_string()))
            }
            Function::StrftimeNow => {
                let [format] = call.bind("strftime_now", ["format"])?;
                let format = required(format, "strftime_now")?;
                let format = format.str_arg("strftime_now")?;
                self.meter.work(format.len().saturating_mul(8))?;
                let mut out = Buffer::new(self.meter);
                strftime(self.unix_seconds, format, &mut out)?;
                Value::text(self.meter, out.into_string())
            }
            Function::Range => {
                let [first, second, step] = call.bind("range", ["start", "stop", "step"])?;
                let first = required(first, "range")?.int_arg("range")?;
                let (start, stop) = match second {
                    Some(stop) => (first, stop.int_arg("range")?),
                    None => (0, first),
                };
                let step = step.map_or(Ok(1), |s| s.int_arg("range"))?;
                range(self.meter, start, stop, step)
            }
            Function::Dict => {
                if !call.positional.is_empty() {
                    return fail("dict takes named arguments");
                }
                let entries = call
                    .named
                    .into_iter()
                    .map(|(k, v)| (Value::Str(super::value::Str::Given(k)), v))
                    .collect();
                Value::dict(self.meter, entries)
            }
            Function::Namespace => {
                let namespace = Rc::new(Namespace::default());
                // A little for the namespace itself, which lives until the end.
                let charge = self.meter.charge(4 * SLOT_BYTES)?;
                namespace
                    .fields
                    .borrow_mut()
                    .push(("".into(), Value::None, charge));
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
    let distance = if step > 0 { stop - start } else { start - stop };
    let count = if distance <= 0 {
        0
    } else {
        (distance - 1) / step.abs() + 1
    };
    if count > i128::from(RANGE_MAX) {
        return Err(limit("a range is too long"));
    }
    meter.step(count as usize / 4)?;
    meter.fits(count as usize * SLOT_BYTES)?;
    Value::list(
        meter,
        (0..count)
            .map(|i| Value::Int((start + i * step) as i64))
            .collect(),
    )
}

fn loop_field(state: &Loop, name: &Name) -> Value {
    let (index, len) = (state.index.get(), state.items.items.len());
    let number = |n: usize| Value::Int(n as i64);
    let neighbour = |at: Option<usize>| {
        let item = at.and_then(|at| state.items.items.get(at)).cloned();
        item.unwrap_or_else(|| Value::Undefined(Arc::clone(name)))
    };
    match &**name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(len - index),
        "revindex0" => number(len - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => number(len),
        "depth" => number(state.nesting + 1),
        "depth0" => number(state.nesting),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(index.checked_add(1)),
        _ => Value::Undefined(Arc::clone(name)),
    }
}
