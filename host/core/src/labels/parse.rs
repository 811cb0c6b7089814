//! The grammar of label selectors, as `k8s.io/apimachinery/pkg/labels` reads it.
//!
//! `in` and `notin` are words only where an operator can stand, so they can be keys and values.

use std::collections::BTreeSet;

use super::{MAX_REQUIREMENTS, Requirement, Selector, Test};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    Open,
    Close,
    Comma,
    Equals,
    NotEquals,
    Not,
    End,
}

struct Lexer<'a> {
    rest: &'a str,
}

pub(super) fn selector(text: &str) -> Result<Selector, String> {
    let mut lexer = Lexer { rest: text };
    let mut selector = Selector::default();
    if lexer.peek()? == Token::End {
        return Ok(selector);
    }
    loop {
        selector.0.insert(requirement(&mut lexer)?);
        if selector.0.len() > MAX_REQUIREMENTS {
            return Err(format!("it has more than {MAX_REQUIREMENTS} requirements"));
        }
        match lexer.next()? {
            Token::Comma if lexer.peek()? != Token::End => {}
            Token::End => return Ok(selector),
            Token::Comma => return Err("it ends with a comma".to_owned()),
            other => return Err(format!("expected a comma or the end, found {other}")),
        }
    }
}

fn requirement(lexer: &mut Lexer<'_>) -> Result<Requirement, String> {
    let first = lexer.next()?;
    let absent = first == Token::Not;
    let Token::Word(key) = (if absent { lexer.next()? } else { first }) else {
        return Err("expected a label key".to_owned());
    };
    let test = if absent {
        Test::Absent
    } else {
        match lexer.peek()? {
            Token::Comma | Token::End => Test::Exists,
            _ => operator(lexer)?,
        }
    };
    check(key, &test)?;
    Ok(Requirement { key: key.into(), test })
}

fn operator(lexer: &mut Lexer<'_>) -> Result<Test, String> {
    match lexer.next()? {
        Token::Equals => Ok(Test::In(BTreeSet::from([value(lexer)?]))),
        Token::NotEquals => Ok(Test::NotIn(BTreeSet::from([value(lexer)?]))),
        Token::Word("in") => values(lexer).map(Test::In),
        Token::Word("notin") => values(lexer).map(Test::NotIn),
        other => Err(format!("expected =, ==, !=, in or notin, found {other}")),
    }
}

/// One value; a value that is not there is the empty one.
fn value(lexer: &mut Lexer<'_>) -> Result<Box<str>, String> {
    match lexer.peek()? {
        Token::Comma | Token::End => Ok("".into()),
        _ => match lexer.next()? {
            Token::Word(word) => Ok(word.into()),
            other => Err(format!("expected a value, found {other}")),
        },
    }
}

/// `(a,b)`; a value that is not there is the empty one.
fn values(lexer: &mut Lexer<'_>) -> Result<BTreeSet<Box<str>>, String> {
    if lexer.next()? != Token::Open {
        return Err("expected ( and values".to_owned());
    }
    let mut values = BTreeSet::new();
    loop {
        let value = match lexer.peek()? {
            Token::Word(word) => {
                lexer.next()?;
                word
            }
            _ => "",
        };
        values.insert(value.into());
        if values.len() > MAX_REQUIREMENTS {
            return Err(format!("it has more than {MAX_REQUIREMENTS} values"));
        }
        match lexer.next()? {
            Token::Comma => {}
            Token::Close => return Ok(values),
            other => return Err(format!("expected a comma or ), found {other}")),
        }
    }
}

/// Whether key and values are such as the API server takes.
pub(super) fn check(key: &str, test: &Test) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let subdomain = |text: &str| {
        text.len() <= 253
            && text.split('.').all(|part| {
                word(part, 63)
                    && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            })
    };
    if !word(name, 63) || prefix.is_some_and(|prefix| !subdomain(prefix)) {
        return Err(format!("{key:?} is no label key"));
    }
    match test {
        Test::In(values) | Test::NotIn(values) => {
            match values.iter().find(|value| !value.is_empty() && !word(value, 63)) {
                Some(value) => Err(format!("{value:?} is no label value")),
                None => Ok(()),
            }
        }
        Test::Exists | Test::Absent => Ok(()),
    }
}

/// Letters and digits, inside also `-`, `_` and `.`.
fn word(text: &str, most: usize) -> bool {
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= most
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

impl<'a> Lexer<'a> {
    fn peek(&mut self) -> Result<Token<'a>, String> {
        let before = self.rest;
        let token = self.next();
        self.rest = before;
        token
    }

    fn next(&mut self) -> Result<Token<'a>, String> {
        self.rest = self.rest.trim_ascii_start();
        for (text, token) in [
            ("==", Token::Equals),
            ("=", Token::Equals),
            ("!=", Token::NotEquals),
            ("!", Token::Not),
            ("(", Token::Open),
            (")", Token::Close),
            (",", Token::Comma),
        ] {
            if let Some(rest) = self.rest.strip_prefix(text) {
                self.rest = rest;
                return Ok(token);
            }
        }
        let special = |c: char| c.is_ascii_whitespace() || "=!(),<>".contains(c);
        let end = self.rest.find(special).unwrap_or(self.rest.len());
        if end > 0 {
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return Ok(Token::Word(word));
        }
        match self.rest.chars().next() {
            None => Ok(Token::End),
            Some(c) => Err(format!("{c:?} is no operator of label selectors")),
        }
    }
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Word(word) => word,
            Self::Open => "(",
            Self::Close => ")",
            Self::Comma => ",",
            Self::Equals => "=",
            Self::NotEquals => "!=",
            Self::Not => "!",
            Self::End => "the end",
        })
    }
}
