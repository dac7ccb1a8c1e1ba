//! From tokens to a tree. Recursion is guarded, and every node knows its height, because a chain such as
//! `a.b.b.b…` grows a tree without any recursion here and would be walked recursively later.

use super::ast::{Args, Expr, Filter, For, Macro, Name, Stmt, StmtKind, Target};
use super::error::TemplateError;
use super::lexer::{Lexed, Token, lex};
use super::limits::{SOURCE_BYTES_MAX, SOURCE_DEPTH_MAX};
use std::sync::Arc;

type Parsed<T> = Result<T, TemplateError>;
/// An expression and its height.
type Node = (Expr, usize);

/// Names that are operators, and so no variables.
const RESERVED: [&str; 7] = ["in", "is", "and", "or", "not", "if", "else"];

/// Binary operators, loosest first.
const LEVELS: [&[&str]; 4] = [&["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];

pub fn parse(source: &str) -> Parsed<Vec<Stmt>> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(TemplateError::Source(format!(
            "the template has {} bytes, at most {SOURCE_BYTES_MAX} are accepted",
            source.len()
        )));
    }
    let normal;
    let source = if source.contains('\r') {
        normal = source.replace("\r\n", "\n").replace('\r', "\n");
        &normal
    } else {
        source
    };
    let mut parser = Parser {
        tokens: lex(source)?,
        at: 0,
        depth: 0,
        loops: 0,
    };
    let (body, end) = parser.body(&[])?;
    debug_assert!(end.is_empty());
    Ok(body)
}

struct Parser<'s> {
    tokens: Lexed<'s>,
    at: usize,
    depth: usize,
    loops: usize,
}

impl<'s> Parser<'s> {
    fn peek(&self) -> Option<&Token<'s>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn error<T>(&self, message: impl std::fmt::Display) -> Parsed<T> {
        let line = self.line();
        Err(TemplateError::Source(format!("line {line}: {message}")))
    }

    fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let got = match self.peek() {
            None => "the end of the template".to_owned(),
            Some(Token::Name(name)) => format!("'{name}'"),
            Some(Token::Op(op)) => format!("'{op}'"),
            Some(Token::Str(_)) => "a string".to_owned(),
            Some(Token::Int(_) | Token::Float(_)) => "a number".to_owned(),
            Some(_) => "the end of the tag".to_owned(),
        };
        self.error(format!("expected {wanted}, found {got}"))
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Token::Op(o)) if *o == op)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(n)) if *n == name)
    }

    fn eat_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn eat_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect_op(&mut self, op: &str) -> Parsed<()> {
        if self.eat_op(op) {
            Ok(())
        } else {
            self.unexpected(&format!("'{op}'"))
        }
    }

    fn name(&mut self) -> Parsed<&'s str> {
        if let Some(&Token::Name(name)) = self.peek() {
            self.at += 1;
            return Ok(name);
        }
        self.unexpected("a name")
    }

    fn end(&mut self, end: Token<'_>) -> Parsed<()> {
        if self.peek() != Some(&end) {
            return self.unexpected("the end of the tag");
        }
        self.at += 1;
        Ok(())
    }

    fn end_block(&mut self) -> Parsed<()> {
        self.end(Token::BlockEnd)
    }

    fn guard<T>(&mut self, inner: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= SOURCE_DEPTH_MAX {
            return self.error(format!("nested more than {SOURCE_DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn node(&self, expr: Expr, below: usize) -> Parsed<Node> {
        if below >= SOURCE_DEPTH_MAX {
            let message = format!("an expression is more than {SOURCE_DEPTH_MAX} deep");
            return self.error(message);
        }
        Ok((expr, below + 1))
    }

    // --- statements

    /// Statements up to one of the tags in `ends`, whose name is eaten and returned.
    fn body(&mut self, ends: &[&str]) -> Parsed<(Vec<Stmt>, &'s str)> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let Some(token) = self.peek().cloned() else {
                return match ends.last() {
                    None => Ok((body, "")),
                    Some(end) => self.error(format!("'{end}' is missing")),
                };
            };
            self.at += 1;
            let kind = match token {
                Token::Text(text) => StmtKind::Text(text.into()),
                Token::PrintBegin => {
                    let (expr, _) = self.tuple()?;
                    self.end(Token::PrintEnd)?;
                    StmtKind::Print(expr)
                }
                _ => {
                    let tag = self.name()?;
                    if ends.contains(&tag) {
                        return Ok((body, tag));
                    }
                    self.guard(|p| p.statement(tag))?
                }
            };
            body.push(Stmt { line, kind });
        }
    }

    fn block(&mut self, end: &str) -> Parsed<Vec<Stmt>> {
        self.end_block()?;
        let (body, _) = self.body(&[end])?;
        // `endmacro` may repeat the name of its macro.
        if end == "endmacro" && matches!(self.peek(), Some(Token::Name(_))) {
            self.at += 1;
        }
        self.end_block()?;
        Ok(body)
    }

    /// A block that sees no loop around it.
    fn own_block(&mut self, end: &str) -> Parsed<Vec<Stmt>> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.block(end)?;
        self.loops = loops;
        Ok(body)
    }

    fn statement(&mut self, tag: &str) -> Parsed<StmtKind> {
        Ok(match tag {
            "if" => self.if_chain()?,
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "do" => {
                let (expr, _) = self.tuple()?;
                self.end_block()?;
                StmtKind::Do(expr)
            }
            "macro" => {
                let name: Name = self.name()?.into();
                let params = self.params()?;
                let body = self.own_block("endmacro")?;
                StmtKind::Macro(Arc::new(Macro { name, params, body }))
            }
            "call" => {
                let has_params = self.is_op("(") && !self.params()?.is_empty();
                let (expr, _) = self.expr()?;
                if !matches!(expr, Expr::Call(..)) {
                    return self.error("a call block needs a call");
                }
                StmtKind::Call(has_params, self.own_block("endcall")?, expr)
            }
            "filter" => {
                let filters = self.filters(true)?;
                StmtKind::FilterBlock(filters, self.block("endfilter")?)
            }
            "with" => {
                let mut pairs = Vec::new();
                while self.peek() != Some(&Token::BlockEnd) {
                    if !pairs.is_empty() {
                        self.expect_op(",")?;
                    }
                    let target = self.target()?;
                    self.expect_op("=")?;
                    pairs.push((target, self.expr()?.0));
                }
                StmtKind::With(pairs, self.block("endwith")?)
            }
            "generation" => StmtKind::Inline(self.block("endgeneration")?),
            "break" | "continue" => {
                if self.loops == 0 {
                    return self.error(format!("'{tag}' outside of a loop"));
                }
                self.end_block()?;
                if tag == "break" {
                    StmtKind::Break
                } else {
                    StmtKind::Continue
                }
            }
            "include" | "import" | "from" | "extends" => {
                while self.peek().is_some_and(|t| *t != Token::BlockEnd) {
                    self.at += 1;
                }
                self.end_block()?;
                StmtKind::Loader(tag.into())
            }
            _ => return self.error(format!("unknown tag '{tag}'")),
        })
    }

    fn if_chain(&mut self) -> Parsed<StmtKind> {
        let mut branches = Vec::new();
        let mut condition = Some(self.tuple()?.0);
        loop {
            self.end_block()?;
            let ends: &[&str] = if condition.is_some() {
                &["elif", "else", "endif"]
            } else {
                &["endif"]
            };
            let (body, end) = self.body(ends)?;
            branches.push((condition.take(), body));
            match end {
                "elif" => condition = Some(self.tuple()?.0),
                "else" => {}
                _ => {
                    self.end_block()?;
                    return Ok(StmtKind::If(branches));
                }
            }
        }
    }

    fn for_loop(&mut self) -> Parsed<StmtKind> {
        let target = self.targets()?;
        if !self.eat_name("in") {
            return self.unexpected("'in'");
        }
        // No conditional expression here: its `if` would be the loop's filter.
        let (mut iter, below) = self.or()?;
        if self.is_op(",") {
            let mut items = vec![iter];
            let mut height = below;
            while self.eat_op(",") {
                let (item, h) = self.or()?;
                items.push(item);
                height = height.max(h);
            }
            iter = self.node(Expr::Tuple(items), height)?.0;
        }
        let filter = if self.eat_name("if") {
            Some(self.expr()?.0)
        } else {
            None
        };
        if self.is_name("recursive") {
            return self.error("recursive loops are not supported");
        }
        self.end_block()?;
        self.loops += 1;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.loops -= 1;
        let otherwise = if end == "else" {
            self.block("endfor")?
        } else {
            self.end_block()?;
            Vec::new()
        };
        Ok(StmtKind::For(Box::new(For {
            target,
            iter,
            filter,
            body,
            otherwise,
        })))
    }

    fn set(&mut self) -> Parsed<StmtKind> {
        let target = self.targets()?;
        if self.eat_op("=") {
            let (value, _) = self.tuple()?;
            self.end_block()?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = self.filters(false)?;
        match target {
            Target::Name(name) => Ok(StmtKind::SetBlock(name, filters, self.block("endset")?)),
            _ => self.error("a set block needs one name"),
        }
    }

    fn targets(&mut self) -> Parsed<Target> {
        let first = self.target()?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.eat_op(",") {
            if self.is_name("in") || self.is_op("=") {
                break;
            }
            all.push(self.target()?);
        }
        Ok(Target::Tuple(all))
    }

    fn target(&mut self) -> Parsed<Target> {
        if self.eat_op("(") {
            let inner = self.guard(Self::targets)?;
            self.expect_op(")")?;
            return Ok(match inner {
                Target::Tuple(_) => inner,
                one => Target::Tuple(vec![one]),
            });
        }
        let name = self.name()?;
        if matches!(name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.error(format!("cannot assign to '{name}'"));
        }
        if self.eat_op(".") {
            return Ok(Target::Field(name.into(), self.name()?.into()));
        }
        Ok(Target::Name(name.into()))
    }

    fn params(&mut self) -> Parsed<Vec<(Name, Option<Expr>)>> {
        let mut params = Vec::new();
        self.expect_op("(")?;
        while !self.eat_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.name()?.into();
            let default = if self.eat_op("=") {
                Some(self.expr()?.0)
            } else {
                None
            };
            params.push((name, default));
        }
        Ok(params)
    }

    fn filters(&mut self, first_is_bare: bool) -> Parsed<Vec<Filter>> {
        let mut filters = Vec::new();
        while (first_is_bare && filters.is_empty()) || self.eat_op("|") {
            filters.push(self.filter()?.0);
        }
        Ok(filters)
    }

    fn filter(&mut self) -> Parsed<(Filter, usize)> {
        let name = self.name()?.into();
        let (args, height) = self.args()?;
        Ok((Filter { name, args }, height))
    }

    // --- expressions, loosest first

    /// A part of an expression that is higher than all its parts.
    fn inner(&mut self, height: &mut usize) -> Parsed<Expr> {
        let (expr, h) = self.expr()?;
        *height = h.max(*height);
        Ok(expr)
    }

    /// `item, item, …` up to `close`; a comma may come last.
    fn commas(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Parsed<()>) -> Parsed<()> {
        let mut first = true;
        while !self.eat_op(close) {
            if !std::mem::take(&mut first) {
                self.expect_op(",")?;
                if self.eat_op(close) {
                    break;
                }
            }
            item(self)?;
        }
        Ok(())
    }

    /// One expression, or several with commas: a tuple.
    fn tuple(&mut self) -> Parsed<Node> {
        let (first, mut height) = self.expr()?;
        if !self.is_op(",") {
            return Ok((first, height));
        }
        let mut items = vec![first];
        while self.eat_op(",") {
            if matches!(
                self.peek(),
                None | Some(Token::PrintEnd | Token::BlockEnd | Token::Op(")"))
            ) {
                break;
            }
            items.push(self.inner(&mut height)?);
        }
        self.node(Expr::Tuple(items), height)
    }

    fn expr(&mut self) -> Parsed<Node> {
        self.guard(|p| {
            let (mut value, mut height) = p.or()?;
            while p.eat_name("if") {
                let (condition, h) = p.or()?;
                height = height.max(h);
                let mut otherwise = None;
                if p.eat_name("else") {
                    otherwise = Some(Box::new(p.inner(&mut height)?));
                }
                let sides = Box::new((value, condition));
                (value, height) = p.node(Expr::Cond(sides, otherwise), height)?;
            }
            Ok((value, height))
        })
    }

    fn or(&mut self) -> Parsed<Node> {
        let (mut left, mut height) = self.and()?;
        while self.eat_name("or") {
            let (right, h) = self.and()?;
            (left, height) = self.node(Expr::Or(Box::new((left, right))), height.max(h))?;
        }
        Ok((left, height))
    }

    fn and(&mut self) -> Parsed<Node> {
        let (mut left, mut height) = self.not()?;
        while self.eat_name("and") {
            let (right, h) = self.not()?;
            (left, height) = self.node(Expr::And(Box::new((left, right))), height.max(h))?;
        }
        Ok((left, height))
    }

    fn not(&mut self) -> Parsed<Node> {
        if self.is_name("not") {
            return self.guard(|p| {
                p.at += 1;
                let (inner, height) = p.not()?;
                p.node(Expr::Not(Box::new(inner)), height)
            });
        }
        self.compare()
    }

    fn compare(&mut self) -> Parsed<Node> {
        let (left, mut height) = self.binary(0)?;
        let mut rest = Vec::new();
        loop {
            let op = match self.peek() {
                Some(&Token::Op(op @ ("==" | "!=" | "<" | "<=" | ">" | ">="))) => op,
                Some(Token::Name("in")) => "in",
                Some(Token::Name("not"))
                    if matches!(self.tokens.get(self.at + 1), Some((Token::Name("in"), _))) =>
                {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            self.at += 1;
            let (right, h) = self.binary(0)?;
            height = height.max(h);
            rest.push((op, right));
        }
        if rest.is_empty() {
            return Ok((left, height));
        }
        self.node(Expr::Compare(Box::new(left), rest), height)
    }

    /// `+ -`, then `~`, then `* / // %`, then `**`; all from the left, as Jinja has it.
    fn binary(&mut self, level: usize) -> Parsed<Node> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary(true);
        };
        let (mut left, mut height) = self.binary(level + 1)?;
        loop {
            let op = match self.peek() {
                Some(&Token::Op(op)) if operators.contains(&op) => op,
                _ => return Ok((left, height)),
            };
            self.at += 1;
            let (right, h) = self.binary(level + 1)?;
            (left, height) = self.node(Expr::Binary(op, Box::new((left, right))), height.max(h))?;
        }
    }

    fn unary(&mut self, with_filters: bool) -> Parsed<Node> {
        let node = if self.is_op("-") || self.is_op("+") {
            let make = if self.is_op("-") {
                Expr::Neg
            } else {
                Expr::Pos
            };
            self.at += 1;
            let (inner, height) = self.guard(|p| p.unary(false))?;
            self.node(make(Box::new(inner)), height)?
        } else {
            self.primary()?
        };
        let node = self.postfix(node)?;
        if with_filters {
            self.filtered(node)
        } else {
            Ok(node)
        }
    }

    fn primary(&mut self) -> Parsed<Node> {
        let Some(token) = self.peek().cloned() else {
            return self.unexpected("an expression");
        };
        self.at += 1;
        let expr = match token {
            Token::Name("true" | "True") => Expr::Bool(true),
            Token::Name("false" | "False") => Expr::Bool(false),
            Token::Name("none" | "None") => Expr::None,
            Token::Name(name) if !RESERVED.contains(&name) => Expr::Name(name.into()),
            Token::Int(value) => Expr::Int(value),
            Token::Float(value) => Expr::Float(value),
            Token::Str(mut text) => {
                while let Some(Token::Str(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Expr::Str(text.into())
            }
            Token::Op("(") => {
                if self.eat_op(")") {
                    return self.node(Expr::Tuple(Vec::new()), 0);
                }
                let node = self.guard(Self::tuple)?;
                self.expect_op(")")?;
                return Ok(node);
            }
            Token::Op("[") => {
                let (mut items, mut height) = (Vec::new(), 0);
                self.commas("]", |p| {
                    items.push(p.inner(&mut height)?);
                    Ok(())
                })?;
                return self.node(Expr::List(items), height);
            }
            Token::Op("{") => return self.dict(),
            _ => {
                self.at -= 1;
                return self.unexpected("an expression");
            }
        };
        self.node(expr, 0)
    }

    fn dict(&mut self) -> Parsed<Node> {
        let (mut entries, mut height) = (Vec::new(), 0);
        self.commas("}", |p| {
            let key = p.inner(&mut height)?;
            p.expect_op(":")?;
            entries.push((key, p.inner(&mut height)?));
            Ok(())
        })?;
        self.node(Expr::Dict(entries), height)
    }

    fn postfix(&mut self, (mut expr, mut height): Node) -> Parsed<Node> {
        loop {
            if self.eat_op(".") {
                let object = Box::new(expr);
                let part = if let Some(&Token::Int(index)) = self.peek() {
                    self.at += 1;
                    Expr::Item(object, Box::new(Expr::Int(index)))
                } else {
                    Expr::Attr(object, self.name()?.into())
                };
                (expr, height) = self.node(part, height)?;
            } else if self.eat_op("[") {
                (expr, height) = self.subscript(expr, height)?;
            } else if self.is_op("(") {
                let (args, h) = self.args()?;
                let call = Expr::Call(Box::new(expr), Box::new(args));
                (expr, height) = self.node(call, height.max(h))?;
            } else {
                return Ok((expr, height));
            }
        }
    }

    fn subscript(&mut self, expr: Expr, mut height: usize) -> Parsed<Node> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut colons = 0;
        while !self.eat_op("]") {
            if self.eat_op(":") {
                colons += 1;
                if colons > 2 {
                    return self.error("a slice has at most three parts");
                }
                continue;
            }
            let part = self.inner(&mut height)?;
            match parts.get_mut(colons) {
                Some(slot @ None) => *slot = Some(part),
                _ => return self.unexpected("']'"),
            }
            if !self.is_op(":") && !self.is_op("]") {
                return self.unexpected("']'");
            }
        }
        let target = Box::new(expr);
        if colons > 0 {
            return self.node(Expr::Slice(target, Box::new(parts)), height);
        }
        let [Some(index), _, _] = parts else {
            return self.error("an empty subscript");
        };
        self.node(Expr::Item(target, Box::new(index)), height)
    }

    /// Arguments in parentheses; without those there are none.
    fn args(&mut self) -> Parsed<(Args, usize)> {
        let (mut args, mut height) = (Args::default(), 0);
        if !self.eat_op("(") {
            return Ok((args, height));
        }
        self.commas(")", |p| {
            if p.is_op("*") || p.is_op("**") {
                return p.error("argument unpacking is not supported");
            }
            if let [(Token::Name(name), _), (Token::Op("="), _), ..] = p.tokens[p.at..] {
                p.at += 2;
                args.named.push((name.into(), p.inner(&mut height)?));
            } else if args.named.is_empty() {
                args.positional.push(p.inner(&mut height)?);
            } else {
                return p.error("a positional argument after a named one");
            }
            Ok(())
        })?;
        Ok((args, height))
    }

    /// Filters, tests, and what may follow a filter: `x|f is t`, `(x|f)(…)`.
    fn filtered(&mut self, (mut expr, mut height): Node) -> Parsed<Node> {
        loop {
            if self.eat_op("|") {
                let (filter, h) = self.filter()?;
                let filter = Expr::Filter(Box::new(expr), Box::new(filter));
                (expr, height) = self.node(filter, height.max(h))?;
            } else if self.eat_name("is") {
                (expr, height) = self.test(expr, height)?;
            } else if self.is_op("(") {
                let (args, h) = self.args()?;
                let call = Expr::Call(Box::new(expr), Box::new(args));
                (expr, height) = self.node(call, height.max(h))?;
            } else {
                return Ok((expr, height));
            }
        }
    }

    fn test(&mut self, expr: Expr, height: usize) -> Parsed<Node> {
        let negated = self.eat_name("not");
        let name: Name = self.name()?.into();
        let has_bare = match self.peek() {
            Some(Token::Name(name)) => !RESERVED.contains(name),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => true,
            _ => false,
        };
        let (mut args, mut h) = self.args()?;
        if has_bare {
            let node = self.primary()?;
            let (arg, below) = self.guard(|p| p.postfix(node))?;
            args.positional.push(arg);
            h = below;
        }
        let test = Expr::Test(Box::new(expr), Box::new(Filter { name, args }));
        let node = self.node(test, height.max(h))?;
        if negated {
            self.node(Expr::Not(Box::new(node.0)), node.1)
        } else {
            Ok(node)
        }
    }
}
