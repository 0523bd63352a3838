//! Checks inserted into a template's compiled instructions.
//!
//! minijinja limits steps and recursion, but operators have no hook: forty rounds of `{% set ns.x = ns.x + ns.x %}`
//! take a few hundred steps and require terabytes, and `'x' * 99999999` is computed while the template is compiled.
//! Therefore literals are shielded from constant folding, and calls to the functions of [`super::limits`] are inserted
//! around operators, literals of containers and raw text. The template's strings are marked ([`origin`]).

use minijinja::{
    Error, ErrorKind, Value,
    machinery::{Instruction, Instructions, Token, tokenize},
    syntax::SyntaxConfig,
};

use super::{
    limits::{
        CHECK_ELEMENT, CHECK_RESULT, READ_COMPARED, READ_ELEMENT, READ_FACTORS, READ_FIRST_LEVEL, READ_NAMED,
        READ_PAIRS, READ_TEXT,
    },
    origin,
};

/// Maximum number of bytes of a template's source.
const MAX_SOURCE: usize = 256 << 10;

/// Maximum number of tokens between two pieces of raw text, which limits the nesting of an expression.
const MAX_TAG: usize = 4096;

/// Maximum number of `elif` tags; each is nested in the one before it.
const MAX_ELIF: usize = 1000;

/// A filter that follows every literal until the checks are inserted.
const LITERAL: &str = "__literal";

fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::SyntaxError, reason.into())
}

/// Returns the source with [`LITERAL`] applied to every literal that could be folded into a large constant.
pub(super) fn shield_literals(source: &str, syntax: SyntaxConfig) -> Result<String, Error> {
    if source.len() > MAX_SOURCE {
        return Err(refused(format!(
            "expected a source of at most {MAX_SOURCE} bytes, found {}",
            source.len()
        )));
    }

    let tokens: Vec<_> = tokenize(source, false, syntax).collect::<Result<_, _>>()?;
    let mut shielded = String::with_capacity(source.len() * 2);
    let mut copied = 0;
    let mut in_tag = 0;
    let mut elifs = 0;
    for (index, (token, span)) in tokens.iter().enumerate() {
        let before = |back: usize| index.checked_sub(back).map(|at| &tokens[at].0);
        in_tag = if matches!(token, Token::TemplateData(_)) { 0 } else { in_tag + 1 };
        elifs += usize::from(matches!(token, Token::Ident("elif")));
        if in_tag > MAX_TAG || elifs > MAX_ELIF {
            return Err(refused(format!(
                "expected tags of at most {MAX_TAG} tokens and {MAX_ELIF} elif tags"
            )));
        }
        let (opens, closes) = match token {
            // Consecutive strings are one literal.
            Token::Str(_) | Token::String(_) => {
                (!is_string(before(1)), !is_string(tokens.get(index + 1).map(|(token, _)| token)))
            }
            // In `items.0` the number is an attribute.
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => {
                let literal = !matches!(before(1), Some(Token::Dot));
                (literal, literal)
            }
            Token::Ident("true" | "True" | "false" | "False") => {
                let literal = match before(1) {
                    Some(Token::Ident("is") | Token::Dot) => false,
                    Some(Token::Ident("not")) => !matches!(before(2), Some(Token::Ident("is"))),
                    _ => true,
                };
                (literal, literal)
            }
            _ => (false, false),
        };
        let start = span.start_offset as usize;
        let end = span.end_offset as usize;
        if opens {
            shielded.push_str(source.get(copied..start).unwrap_or_default());
            shielded.push('(');
            copied = start;
        }
        if closes {
            shielded.push_str(source.get(copied..end).unwrap_or_default());
            shielded.push_str(&format!("|{LITERAL})"));
            copied = end;
        }
    }
    shielded.push_str(source.get(copied..).unwrap_or_default());
    Ok(shielded)
}

fn is_string(token: Option<&Token<'_>>) -> bool {
    matches!(token, Some(Token::Str(_) | Token::String(_)))
}

/// Returns a copy of compiled instructions with checks.
pub(super) fn insert_checks<'a>(compiled: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let mut checked = Instructions::new(compiled.name(), compiled.source());
    let mut new_index = Vec::new();
    let mut length = 0;
    while let Some(instruction) = compiled.get(new_index.len() as u32) {
        let line = compiled.get_line(new_index.len() as u32).unwrap_or_default() as u16;
        new_index.push(length);
        for instruction in with_checks(instruction)? {
            length = checked.add_with_line(instruction, line) + 1;
        }
    }

    new_index.push(length);
    for index in 0..length {
        use Instruction::{BuildMacro, Iterate, Jump, JumpIfFalse, JumpIfFalseOrPop, JumpIfTrueOrPop};
        if let Some(
            Jump(target)
            | Iterate(target)
            | JumpIfFalse(target)
            | JumpIfFalseOrPop(target)
            | JumpIfTrueOrPop(target)
            | BuildMacro(_, target, _),
        ) = checked.get_mut(index)
        {
            *target = new_index.get(*target as usize).copied().unwrap_or(length);
        }
    }
    Ok(checked)
}

/// Returns an instruction after a call that passes the topmost values to a function, which returns them.
fn after_reading<'a>(function: &'static str, count: usize, own: Instruction<'a>) -> Vec<Instruction<'a>> {
    vec![Instruction::CallFunction(function, Some(count as u16)), Instruction::UnpackList(count), own]
}

/// Returns the instructions with a check of their result.
fn with_result(mut instructions: Vec<Instruction<'_>>) -> Vec<Instruction<'_>> {
    instructions.push(Instruction::CallFunction(CHECK_RESULT, Some(1)));
    instructions
}

/// Returns an instruction with the checks before and after it.
fn with_checks<'a>(instruction: &Instruction<'a>) -> Result<Vec<Instruction<'a>>, Error> {
    use Instruction as I;
    let own = instruction.clone();
    Ok(match instruction {
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(origin::mark(text))), I::Emit],
        I::LoadConst(constant) => match constant.as_str() {
            Some(text) => vec![I::LoadConst(Value::from(origin::mark(text)))],
            None => vec![own],
        },
        I::ApplyFilter(LITERAL, ..) => Vec::new(),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            after_reading(READ_COMPARED, 2, own)
        }
        I::GetItem => after_reading(READ_ELEMENT, 2, own),
        I::PushLoop(_) | I::FastRecurse => after_reading(READ_FIRST_LEVEL, 1, own),
        // A call may be a recursive loop, which counts the characters of a string.
        I::CallFunction(_, Some(count @ 1..)) => after_reading(READ_FIRST_LEVEL, usize::from(*count), own),
        I::BuildKwargs(pairs @ 1..) if *pairs <= MAX_TAG => after_reading(READ_NAMED, 2 * pairs, own),

        I::Slice => with_result(after_reading(READ_FIRST_LEVEL, 4, own)),
        I::Mul => with_result(after_reading(READ_FACTORS, 2, own)),
        I::StringConcat => with_result(after_reading(READ_TEXT, 2, own)),
        I::BuildMap(pairs @ 1..) if *pairs <= MAX_TAG => {
            with_result(after_reading(READ_PAIRS, 2 * pairs, own))
        }
        I::Add | I::BuildMap(0) | I::BuildList(_) | I::BuildTuple(_) => with_result(vec![own]),

        I::SetAttr(_) => vec![I::Swap, I::CallFunction(CHECK_ELEMENT, Some(1)), I::Swap, own],
        I::Include(_) | I::LoadBlocks => return Err(refused("a chat template cannot load other templates")),
        I::PushAutoEscape => return Err(refused("a chat template cannot escape its output")),
        I::CallMethod("changed", _) => return Err(refused("loop.changed is not supported")),
        I::CallFunction(_, None) => return Err(refused("function arguments with `*` are not supported")),
        I::BuildMap(1..) | I::BuildKwargs(1..) => return Err(refused("a dictionary literal is too long")),
        _ => vec![own],
    })
}
