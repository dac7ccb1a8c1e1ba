//! The tree of a parsed template. Its depth is bounded by the parser, so walking and dropping may recurse.

use std::sync::Arc;

pub type Name = Arc<str>;

#[derive(Debug)]
pub struct Stmt {
    pub line: u32,
    pub kind: StmtKind,
}

#[derive(Debug)]
pub enum StmtKind {
    Text(Name),
    Print(Expr),
    /// Evaluated for nothing (`do`).
    Do(Expr),
    /// Branches in order; the condition of an `else` is absent.
    If(Vec<(Option<Expr>, Vec<Stmt>)>),
    For(Box<For>),
    Set(Target, Expr),
    SetBlock(Name, Vec<Filter>, Vec<Stmt>),
    FilterBlock(Vec<Filter>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Macro(Arc<Macro>),
    /// Whether the block has parameters, its body, and the call it is handed to.
    Call(bool, Vec<Stmt>, Expr),
    /// `{% generation %}`: marks what the model said, prints its body.
    Inline(Vec<Stmt>),
    Break,
    Continue,
    /// `include`, `import`, `from`, `extends`: there is no loader. An error only if reached.
    Loader(Name),
}

#[derive(Debug)]
pub struct For {
    pub target: Target,
    pub iter: Expr,
    pub filter: Option<Expr>,
    pub body: Vec<Stmt>,
    pub otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub struct Macro {
    pub name: Name,
    pub params: Vec<(Name, Option<Expr>)>,
    pub body: Vec<Stmt>,
}

#[derive(Debug)]
pub struct Filter {
    pub name: Name,
    pub args: Args,
}

#[derive(Debug)]
pub enum Target {
    Name(Name),
    /// `set ns.field = …`
    Field(Name, Name),
    Tuple(Vec<Target>),
}

#[derive(Debug, Default)]
pub struct Args {
    pub positional: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
}

#[derive(Debug)]
pub enum Expr {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Name),
    Name(Name),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attr(Box<Expr>, Name),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Box<Args>),
    Filter(Box<Expr>, Box<Filter>),
    Test(Box<Expr>, Box<Filter>),
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    /// The operator as it is written, and its sides.
    Binary(&'static str, Box<(Expr, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    /// `a < b <= c`: the first, then each operator (also `in`, `not in`) and what stands behind it.
    Compare(Box<Expr>, Vec<(&'static str, Expr)>),
    /// value, condition, otherwise
    Cond(Box<(Expr, Expr)>, Option<Box<Expr>>),
}
