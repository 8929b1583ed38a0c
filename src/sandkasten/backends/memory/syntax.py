"""The grammar of the tiny shell: text in, a tree of commands out, nothing executed.

Simple commands, assignments, redirections, quotes, `$name`, `${name:-word}`, `$(…)`, pipes,
`;` `&` `&&` `||`, `!`, `( )`, `{ }`, `if`, `while`, `for`. What is not closed, or not known, is
a SyntaxTrouble at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


class SyntaxTrouble(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Literal:
    text: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class Variable:
    name: str
    default: str | None
    quoted: bool


@dataclass(frozen=True, slots=True)
class Substitution:
    body: Sequence
    quoted: bool


Part: TypeAlias = Literal | Variable | Substitution
Word: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Redirect:
    fd: int
    operator: str
    target: Word


@dataclass(frozen=True, slots=True)
class Simple:
    assignments: tuple[tuple[str, Word], ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class Group:
    body: Sequence
    subshell: bool
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, slots=True)
class If:
    condition: Sequence
    then: Sequence
    otherwise: Sequence | None


@dataclass(frozen=True, slots=True)
class While:
    condition: Sequence
    body: Sequence


@dataclass(frozen=True, slots=True)
class For:
    name: str
    words: tuple[Word, ...]
    body: Sequence


Command: TypeAlias = Simple | Group | If | While | For


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Command, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class AndOr:
    """`links[i]` stands between pipeline i and i + 1."""

    pipelines: tuple[Pipeline, ...]
    links: tuple[str, ...]
    background: bool


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[AndOr, ...]


_OPERATORS = ("&&", "||", ">>", ">&", "<&", ";", "&", "|", ">", "<", "(", ")", "\n")
_RESERVED = frozenset(
    {"then", "else", "elif", "fi", "do", "done", "}", "if", "while", "for", "in", "{", "!"}
)
_CLOSERS = frozenset({"then", "else", "elif", "fi", "do", "done", "}"})


@dataclass(frozen=True, slots=True)
class _Operator:
    text: str
    fd: int | None = None


_Token: TypeAlias = _Operator | Word


def parse(text: str) -> Sequence:
    """The commands of `text`; raises SyntaxTrouble."""
    parser = _Parser(_Lexer(text).tokens())
    body = parser.sequence()
    parser.expect_end()
    return body


class _Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def tokens(self) -> list[_Token]:
        found: list[_Token] = []
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t":
                self._at += 1
            elif text.startswith("\\\n", self._at):
                self._at += 2
            elif char == "#":
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif operator := self._operator():
                found.append(operator)
            else:
                found.append(self._word())
        return found

    def _operator(self) -> _Operator | None:
        text, at = self._text, self._at
        digits = at
        while digits < len(text) and text[digits].isdigit():
            digits += 1
        start = digits if digits > at and text[digits : digits + 1] in ("<", ">") else at
        for operator in _OPERATORS:
            if text.startswith(operator, start):
                self._at = start + len(operator)
                return _Operator(operator, int(text[at:start]) if start > at else None)
        return None

    def _word(self) -> Word:
        parts: list[Part] = []
        plain = ""
        text = self._text
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\n;&|<>()":
                break
            if char == "'":
                end = text.find("'", self._at + 1)
                if end < 0:
                    raise SyntaxTrouble("unexpected EOF while looking for matching `''")
                parts += [Literal(plain, quoted=False), Literal(text[self._at + 1 : end], True)]
                plain, self._at = "", end + 1
            elif char == '"':
                parts.append(Literal(plain, quoted=False))
                plain = ""
                parts += self._double()
            elif char == "\\":
                parts += [Literal(plain, False), Literal(text[self._at + 1 : self._at + 2], True)]
                plain = ""
                self._at += 2
            elif char == "$":
                parts += [Literal(plain, quoted=False), self._dollar(quoted=False)]
                plain = ""
            else:
                plain += char
                self._at += 1
        parts.append(Literal(plain, quoted=False))
        return tuple(
            part
            for part in parts
            if not (isinstance(part, Literal) and not part.text and not part.quoted)
        )

    def _double(self) -> list[Part]:
        text = self._text
        self._at += 1
        # An empty literal, so that "" is a word and not nothing.
        parts: list[Part] = [Literal("", quoted=True)]
        plain = ""
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                parts.append(Literal(plain, quoted=True))
                return parts
            if char == "\\" and text[self._at + 1 : self._at + 2] in ("$", '"', "\\", "`", "\n"):
                plain += text[self._at + 1].replace("\n", "")
                self._at += 2
            elif char == "$":
                parts += [Literal(plain, quoted=True), self._dollar(quoted=True)]
                plain = ""
            else:
                plain += char
                self._at += 1
        raise SyntaxTrouble("unexpected EOF while looking for matching `\"'")

    def _dollar(self, *, quoted: bool) -> Part:
        text = self._text
        self._at += 1
        char = text[self._at : self._at + 1]
        if char == "(":
            return self._substitution(quoted=quoted)
        if char == "{":
            end = text.find("}", self._at)
            if end < 0:
                raise SyntaxTrouble("unexpected EOF while looking for matching `}'")
            name, dash, default = text[self._at + 1 : end].partition(":-")
            self._at = end + 1
            return Variable(name, default if dash else None, quoted)
        if char and (char in "?$!#@*" or char.isdigit()):
            self._at += 1
            return Variable(char, None, quoted)
        end = self._at
        while end < len(text) and (text[end].isalnum() or text[end] == "_"):
            end += 1
        name, self._at = text[self._at : end], end
        return Variable(name, None, quoted) if name else Literal("$", quoted=True)

    def _substitution(self, *, quoted: bool) -> Substitution:
        start, depth = self._at + 1, 1
        at = start
        while at < len(self._text):
            char = self._text[at]
            if char == "'":
                close = self._text.find("'", at + 1)
                at = len(self._text) if close < 0 else close
            elif char == "\\":
                at += 1
            elif char in "()":
                depth += 1 if char == "(" else -1
                if not depth:
                    self._at = at + 1
                    return Substitution(parse(self._text[start:at]), quoted)
            at += 1
        raise SyntaxTrouble("unexpected EOF while looking for matching `)'")


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._unexpected()

    def sequence(self) -> Sequence:
        items: list[AndOr] = []
        while True:
            while self._operator(";", "\n") and (items or self._operator("\n")):
                self._at += 1
            if self._at >= len(self._tokens) or self._operator(")") or self._plain() in _CLOSERS:
                return Sequence(tuple(items))
            items.append(self._and_or())
            if not self._operator(";", "\n", "&", ")") and self._at < len(self._tokens):
                if self._plain() in _CLOSERS:
                    return Sequence(tuple(items))
                raise self._unexpected()
            if self._operator(";", "&"):
                self._at += 1
                if self._operator(";"):
                    raise self._unexpected()

    def _and_or(self) -> AndOr:
        pipelines, links = [self._pipeline()], []
        while operator := self._operator("&&", "||"):
            self._at += 1
            self._newlines()
            links.append(operator)
            pipelines.append(self._pipeline())
        return AndOr(tuple(pipelines), tuple(links), background=bool(self._operator("&")))

    def _pipeline(self) -> Pipeline:
        negated = False
        while self._plain() == "!":
            self._at += 1
            negated = not negated
        commands = [self._command()]
        while self._operator("|"):
            self._at += 1
            self._newlines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        plain = self._plain()
        if self._operator("("):
            self._at += 1
            body = self._body()
            self._need_operator(")")
            return Group(body, subshell=True, redirects=self._redirects())
        if plain == "{":
            self._at += 1
            body = self._body()
            self._need("}")
            return Group(body, subshell=False, redirects=self._redirects())
        if plain == "if":
            return self._if()
        if plain == "while":
            self._at += 1
            condition = self._body()
            self._need("do")
            body = self._body()
            self._need("done")
            return While(condition, body)
        if plain == "for":
            return self._for()
        if plain in _RESERVED:
            raise self._unexpected()
        return self._simple()

    def _if(self) -> If:
        self._at += 1
        condition = self._body()
        self._need("then")
        then = self._body()
        otherwise: Sequence | None = None
        if self._plain() == "elif":
            inner = self._if()
            return If(condition, then, Sequence((AndOr((Pipeline((inner,), False),), (), False),)))
        if self._plain() == "else":
            self._at += 1
            otherwise = self._body()
        self._need("fi")
        return If(condition, then, otherwise)

    def _for(self) -> For:
        self._at += 1
        name = self._plain()
        if not name:
            raise self._unexpected()
        self._at += 1
        self._need("in")
        words: list[Word] = []
        while not self._operator(";", "\n"):
            words.append(self._take_word())
        self._at += 1
        self._newlines()
        self._need("do")
        body = self._body()
        self._need("done")
        return For(name, tuple(words), body)

    def _body(self) -> Sequence:
        self._newlines()
        body = self.sequence()
        if not body.items:
            raise self._unexpected()
        return body

    def _simple(self) -> Simple:
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while self._at < len(self._tokens):
            if self._operator(">", ">>", "<", ">&", "<&"):
                redirects.append(self._redirect())
                continue
            token = self._tokens[self._at]
            if isinstance(token, _Operator):
                break
            name = _assigned(token) if not words else None
            if name is None:
                words.append(token)
            else:
                first = token[0]
                assert isinstance(first, Literal)
                rest = Literal(first.text[len(name) + 1 :], quoted=True)
                assignments.append((name, (rest, *token[1:])))
            self._at += 1
        if not assignments and not words and not redirects:
            raise self._unexpected()
        return Simple(tuple(assignments), tuple(words), tuple(redirects))

    def _redirects(self) -> tuple[Redirect, ...]:
        found: list[Redirect] = []
        while self._operator(">", ">>", "<", ">&", "<&"):
            found.append(self._redirect())
        return tuple(found)

    def _redirect(self) -> Redirect:
        token = self._tokens[self._at]
        assert isinstance(token, _Operator)
        self._at += 1
        fd = token.fd if token.fd is not None else (0 if token.text.startswith("<") else 1)
        return Redirect(fd, token.text, self._take_word())

    def _take_word(self) -> Word:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or isinstance(token, _Operator):
            raise self._unexpected()
        self._at += 1
        return token

    def _operator(self, *texts: str) -> str | None:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        return token.text if isinstance(token, _Operator) and token.text in texts else None

    def _plain(self) -> str | None:
        """The word here when it is one unquoted literal, as reserved words must be."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or isinstance(token, _Operator) or len(token) != 1:
            return None
        part = token[0]
        return part.text if isinstance(part, Literal) and not part.quoted else None

    def _need(self, word: str) -> None:
        if self._plain() != word:
            raise self._unexpected()
        self._at += 1

    def _need_operator(self, text: str) -> None:
        if not self._operator(text):
            raise self._unexpected()
        self._at += 1

    def _newlines(self) -> None:
        while self._operator("\n"):
            self._at += 1

    def _unexpected(self) -> SyntaxTrouble:
        if self._at >= len(self._tokens):
            return SyntaxTrouble("syntax error: unexpected end of file")
        token = self._tokens[self._at]
        text = token.text if isinstance(token, _Operator) else (self._plain() or "word")
        return SyntaxTrouble(f"syntax error near unexpected token `{text}'")


def _assigned(word: Word) -> str | None:
    first = word[0] if word else None
    if not isinstance(first, Literal) or first.quoted:
        return None
    name, equals, _ = first.text.partition("=")
    return name if equals and name.isidentifier() and name.isascii() else None
