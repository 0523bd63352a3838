//! A template's syntax tree with checks around whatever can make values grow.
//!
//! Fuel counts steps, but one step can double a string or read a list that holds itself. So the tree is copied before
//! it is compiled: operators, filters, calls and slices get filters of [`super::budget`] around what goes in and what
//! comes out, and raw text becomes an expression, so that it is counted where it is written. The names of those
//! filters cannot be spelt in a template. This module computes nothing.

use minijinja::{
    Value,
    machinery::{
        Span,
        ast::{self, BinOpKind, CallArg, Expr, Spanned, Stmt},
    },
};

use super::budget::Use;

/// Counts what a step has produced.
pub(super) const CHARGE: &str = "(charge)";
/// Weighs what a step reads as text.
pub(super) const TEXT: &str = "(text)";
/// Weighs what a step takes apart.
pub(super) const ITEMS: &str = "(items)";
/// Multiplies.
pub(super) const TIMES: &str = "(times)";

/// Filters and methods that look at no more than a value's first level, and make nothing larger than it.
const SHALLOW: &[&str] =
    &["length", "count", "first", "last", "default", "d", "get", "items", "keys", "values", "safe", "bool"];

/// Filters and methods that read a string as a string; all others may take it apart.
const TEXTUAL: &[&str] = &[
    "trim",
    "strip",
    "lstrip",
    "rstrip",
    "upper",
    "lower",
    "title",
    "capitalize",
    "string",
    "tojson",
    "escape",
    "e",
    "replace",
    "indent",
    "format",
    "int",
    "float",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "urlencode",
    "attr",
];

/// Tests that look at a value's kind alone.
const KINDS: &[&str] = &[
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "iterable",
    "sequence",
    "number",
    "boolean",
    "integer",
    "int",
    "float",
    "true",
    "false",
    "safe",
    "escaped",
    "callable",
    "sameas",
];

/// The statement with checks.
pub(super) fn statement<'a>(stmt: &Stmt<'a>) -> Stmt<'a> {
    match stmt {
        Stmt::Template(s) => Stmt::Template(with(s, ast::Template { children: body(&s.children) })),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(with(s, ast::EmitExpr { expr: emitted(&s.expr) })),
        Stmt::EmitRaw(s) => {
            let text = Expr::Const(with(s, ast::Const { value: Value::from(s.raw) }));
            Stmt::EmitExpr(with(s, ast::EmitExpr { expr: text }))
        }
        Stmt::ForLoop(s) => Stmt::ForLoop(with(s, for_loop(s))),
        Stmt::IfCond(s) => {
            let (true_body, false_body) = (body(&s.true_body), body(&s.false_body));
            Stmt::IfCond(with(s, ast::IfCond { expr: expression(&s.expr), true_body, false_body }))
        }
        Stmt::WithBlock(s) => {
            let assign = |(target, value): &(Expr<'a>, Expr<'a>)| (expression(target), expression(value));
            let assignments = s.assignments.iter().map(assign).collect();
            Stmt::WithBlock(with(s, ast::WithBlock { assignments, body: body(&s.body) }))
        }
        Stmt::Set(s) => Stmt::Set(with(s, ast::Set { target: target(&s.target), expr: expression(&s.expr) })),
        Stmt::SetBlock(s) => {
            let filter = s.filter.as_ref().map(expression);
            Stmt::SetBlock(with(s, ast::SetBlock { target: target(&s.target), filter, body: body(&s.body) }))
        }
        Stmt::AutoEscape(s) => Stmt::AutoEscape(with(
            s,
            ast::AutoEscape { enabled: expression(&s.enabled), body: body(&s.body) },
        )),
        Stmt::FilterBlock(s) => Stmt::FilterBlock(with(
            s,
            ast::FilterBlock { filter: expression(&s.filter), body: body(&s.body) },
        )),
        Stmt::Macro(s) => Stmt::Macro(with(s, declaration(s))),
        Stmt::CallBlock(s) => {
            let (called, macro_decl) =
                (with(&s.call, call(&s.call)), with(&s.macro_decl, declaration(&s.macro_decl)));
            Stmt::CallBlock(with(s, ast::CallBlock { call: called, macro_decl }))
        }
        Stmt::Do(s) => Stmt::Do(with(s, ast::Do { call: with(&s.call, call(&s.call)) })),
        Stmt::Continue(s) => Stmt::Continue(with(s, ast::Continue)),
        Stmt::Break(s) => Stmt::Break(with(s, ast::Break)),
        Stmt::Block(s) => {
            Stmt::Block(with(s, ast::Block { name: s.name, required: s.required, body: body(&s.body) }))
        }
        other => of_other_templates(other),
    }
}

/// Statements that name another template; there is none, so they fail once they are reached.
fn of_other_templates<'a>(stmt: &Stmt<'a>) -> Stmt<'a> {
    match stmt {
        Stmt::Extends(s) => Stmt::Extends(with(s, ast::Extends { name: text(&s.name) })),
        Stmt::Import(s) => {
            Stmt::Import(with(s, ast::Import { expr: text(&s.expr), name: expression(&s.name) }))
        }
        Stmt::FromImport(s) => {
            let name = |(name, alias): &(Expr<'a>, Option<Expr<'a>>)| {
                (expression(name), alias.as_ref().map(expression))
            };
            let names = s.names.iter().map(name).collect();
            Stmt::FromImport(with(s, ast::FromImport { expr: text(&s.expr), names }))
        }
        Stmt::Include(s) => {
            let ignore_missing = s.ignore_missing;
            Stmt::Include(with(s, ast::Include { name: text(&s.name), ignore_missing }))
        }
        other => statement(other),
    }
}

/// A node in the place of another.
fn with<T, U>(old: &Spanned<T>, new: U) -> Spanned<U> {
    Spanned::new(new, old.span())
}

fn body<'a>(statements: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    statements.iter().map(statement).collect()
}

fn for_loop<'a>(s: &ast::ForLoop<'a>) -> ast::ForLoop<'a> {
    ast::ForLoop {
        target: target(&s.target),
        iter: expression(&s.iter),
        filter_expr: s.filter_expr.as_ref().map(expression),
        recursive: s.recursive,
        body: body(&s.body),
        else_body: body(&s.else_body),
    }
}

fn declaration<'a>(s: &ast::Macro<'a>) -> ast::Macro<'a> {
    let (args, defaults) = (s.args.iter().map(target).collect(), s.defaults.iter().map(expression).collect());
    ast::Macro { name: s.name, args, defaults, body: body(&s.body) }
}

/// What is assigned to: names, attributes, and lists of them, in which nothing is computed.
fn target<'a>(expr: &Expr<'a>) -> Expr<'a> {
    expression(expr)
}

/// What is written: calls stand as they are, since the compiler looks for those of loops and blocks, and what is
/// written is counted there.
fn emitted<'a>(expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::Call(e) => Expr::Call(with(e, call(e))),
        other => expression(other),
    }
}

fn expression<'a>(expr: &Expr<'a>) -> Expr<'a> {
    let list = |items: &[Expr<'a>]| items.iter().map(expression).collect::<Vec<_>>();
    match expr {
        Expr::Var(e) => Expr::Var(with(e, ast::Var { id: e.id })),
        Expr::Const(e) => Expr::Const(with(e, ast::Const { value: e.value.clone() })),
        Expr::Slice(e) => charged(e.span(), Expr::Slice(with(e, slice(e)))),
        Expr::UnaryOp(e) => {
            use ast::UnaryOpKind::{Neg, Not};
            let op = if matches!(e.op, Not) { Not } else { Neg };
            Expr::UnaryOp(with(e, ast::UnaryOp { op, expr: expression(&e.expr) }))
        }
        Expr::BinOp(e) => operator(e),
        Expr::Compare(e) => {
            let ops = e.ops.iter().map(|o| ast::CompareOp { op: o.op, expr: text(&o.expr) }).collect();
            Expr::Compare(with(e, ast::Compare { expr: text(&e.expr), ops }))
        }
        Expr::IfExpr(e) => {
            let (test_expr, true_expr) = (expression(&e.test_expr), expression(&e.true_expr));
            let false_expr = e.false_expr.as_ref().map(expression);
            Expr::IfExpr(with(e, ast::IfExpr { test_expr, true_expr, false_expr }))
        }
        Expr::Filter(e) => charged(e.span(), Expr::Filter(with(e, filter(e)))),
        Expr::Test(e) => {
            let look: fn(&Expr<'a>) -> Expr<'a> = if KINDS.contains(&e.name) { expression } else { text };
            Expr::Test(with(e, ast::Test { name: e.name, expr: look(&e.expr), args: arguments(&e.args) }))
        }
        Expr::GetAttr(e) => Expr::GetAttr(with(e, ast::GetAttr { expr: expression(&e.expr), name: e.name })),
        Expr::GetItem(e) => {
            let subscript_expr = text(&e.subscript_expr);
            Expr::GetItem(with(e, ast::GetItem { expr: expression(&e.expr), subscript_expr }))
        }
        Expr::Call(e) => charged(e.span(), Expr::Call(with(e, call(e)))),
        Expr::List(e) => Expr::List(with(e, ast::List { items: list(&e.items) })),
        Expr::Tuple(e) => Expr::Tuple(with(e, ast::Tuple { items: list(&e.items) })),
        Expr::Map(e) => {
            let keys = e.keys.iter().map(text).collect();
            Expr::Map(with(e, ast::Map { keys, values: list(&e.values) }))
        }
    }
}

fn slice<'a>(e: &ast::Slice<'a>) -> ast::Slice<'a> {
    let end = |end: &Option<Expr<'a>>| end.as_ref().map(expression);
    ast::Slice { expr: expression(&e.expr), start: end(&e.start), stop: end(&e.stop), step: end(&e.step) }
}

fn operator<'a>(e: &Spanned<ast::BinOp<'a>>) -> Expr<'a> {
    let plain = |op, operand: fn(&Expr<'a>) -> Expr<'a>| {
        Expr::BinOp(with(e, ast::BinOp { op, left: operand(&e.left), right: operand(&e.right) }))
    };
    match e.op {
        BinOpKind::Mul => {
            let args = vec![CallArg::Pos(text(&e.left)), CallArg::Pos(text(&e.right))];
            let times = Expr::Var(with(e, ast::Var { id: TIMES }));
            charged(e.span(), Expr::Call(with(e, ast::Call { expr: times, args })))
        }
        BinOpKind::Add => charged(e.span(), plain(e.op, expression)),
        BinOpKind::Concat => charged(e.span(), plain(e.op, text)),
        BinOpKind::ScAnd | BinOpKind::ScOr => plain(e.op, expression),
        op => plain(op, text),
    }
}

fn filter<'a>(e: &ast::Filter<'a>) -> ast::Filter<'a> {
    let expr = e.expr.as_ref().map(|expr| subject(e.name, expr));
    ast::Filter { name: e.name, expr, args: arguments(&e.args) }
}

/// What a filter or method of that name is applied to.
fn subject<'a>(name: &str, expr: &Expr<'a>) -> Expr<'a> {
    match name {
        name if SHALLOW.contains(&name) => expression(expr),
        name if TEXTUAL.contains(&name) => text(expr),
        _ => checked(ITEMS, expr),
    }
}

fn call<'a>(e: &ast::Call<'a>) -> ast::Call<'a> {
    let expr = match &e.expr {
        // `self.block()` is told by its name.
        Expr::GetAttr(method) if !matches!(&method.expr, Expr::Var(var) if var.id == "self") => {
            let expr = subject(method.name, &method.expr);
            Expr::GetAttr(with(method, ast::GetAttr { expr, name: method.name }))
        }
        other => expression(other),
    };
    ast::Call { expr, args: arguments(&e.args) }
}

fn arguments<'a>(args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let argument = |arg: &CallArg<'a>| match arg {
        CallArg::Pos(expr) => CallArg::Pos(text(expr)),
        CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, text(expr)),
        CallArg::PosSplat(expr) => CallArg::PosSplat(checked(ITEMS, expr)),
        CallArg::KwargSplat(expr) => CallArg::KwargSplat(checked(ITEMS, expr)),
    };
    args.iter().map(argument).collect()
}

/// An expression that is read as text, or compared.
fn text<'a>(expr: &Expr<'a>) -> Expr<'a> {
    checked(TEXT, expr)
}

fn checked<'a>(filter: &'static str, expr: &Expr<'a>) -> Expr<'a> {
    match expr {
        Expr::Const(_) => expression(expr),
        other => apply(filter, other.span(), expression(other)),
    }
}

fn charged(span: Span, expr: Expr<'_>) -> Expr<'_> {
    apply(CHARGE, span, expr)
}

fn apply<'a>(filter: &'static str, span: Span, expr: Expr<'a>) -> Expr<'a> {
    Expr::Filter(Spanned::new(ast::Filter { name: filter, expr: Some(expr), args: Vec::new() }, span))
}

/// The filters that the copy calls on a value, and how each reads it.
pub(super) const WEIGHERS: [(&str, Use); 2] = [(TEXT, Use::Text), (ITEMS, Use::Items)];
