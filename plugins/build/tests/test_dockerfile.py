"""Dockerfiles: parsed strictly, and built like recipes."""

from __future__ import annotations

import os
import tarfile
from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BuildFailed, InvalidRequest
from sandkasten.model.sandbox.network_policy import CLOSED, NetworkPolicy
from sandkasten_build.builder.build_plan import (
    Copy,
    Run,
    SetCommand,
    SetEnv,
    SetUser,
    SetWorkdir,
)
from sandkasten_build.builder.copy_step import pick, pick_all
from sandkasten_build.builder.dockerfile import steps_of
from sandkasten_build.builder.dockerfile_stages import parse_dockerfile
from sandkasten_build.builder.dockerfile_words import WordError, expand, split_words
from sandkasten_build.builder.dockerignore import NOTHING, parse_dockerignore
from sandkasten_runtime.images.image_config import ImageConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandkasten_build.builder.build_plan import Step

SH = ("/bin/sh", "-c")


def steps(
    *lines: str, args: Mapping[str, str] | None = None, base: ImageConfig | None = None
) -> tuple[Step, ...]:
    file = parse_dockerfile("\n".join(("FROM base", *lines)).encode(), args or {})[-1]
    return steps_of(file, base or ImageConfig(), CLOSED, NOTHING).steps


def commands(listed: Iterable[Step]) -> list[tuple[str, ...]]:
    return [step.argv for step in listed if isinstance(step, Run)]


# ---- instructions ------------------------------------------------------------------------------


def test_every_instruction_becomes_a_step():
    network = NetworkPolicy(full=True)
    (file,) = parse_dockerfile(
        b"""# syntax=docker/dockerfile:1
# escape=\\
ARG TAG=3.11
FROM python:$TAG AS build

# A comment.
ENV A=1 B="two words" \\
    # between the lines

    C='$A'
ARG VERSION=1.0
WORKDIR /srv/app
WORKDIR sub
COPY --chown=app:7 --chmod=0640 a.txt b/* ./
ADD ["with space", "/opt/"]
RUN echo $A \\
    && make
run ["make", "install"]
USER app:staff
ENTRYPOINT ["/srv/app/run", "-v"]
CMD serve --port $PORT
""",
        {},
    )
    assert file.base == "python:3.11"
    assert steps_of(file, ImageConfig(), network, NOTHING).steps == (
        SetEnv({"A": "1", "B": "two words", "C": "$A"}),
        SetWorkdir("/srv/app"),
        SetWorkdir("/srv/app/sub"),
        Copy(("a.txt", "b/*"), "/srv/app/sub/", 0o640, "app:7", patterns=True),
        Copy(("with space",), "/opt/", patterns=True, archives=False),
        Run(
            "echo $A     && make",
            network,
            (*SH, "echo $A     && make"),
            {"VERSION": "1.0"},
        ),
        Run('["make", "install"]', network, ("make", "install"), {"VERSION": "1.0"}),
        SetUser("app:staff"),
        SetCommand("entrypoint", ("/srv/app/run", "-v"), clears=True),
        SetCommand("cmd", (*SH, "serve --port $PORT")),
    )


@pytest.mark.promise("P53")
@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("SHELL [\"/bin/bash\"]", "SHELL '[\"/bin/bash\"]' is not supported"),
        ("SHELL [\"python3\", \"-c\"]", "SHELL '[\"python3\", \"-c\"]' is not supported"),
        ("LABEL a", "'a' is not NAME=value"),
        ("COPY --from=1 /a /b", "the file has no stage 1 before this line"),
        ("ADD --from=x /a /b", "ADD --from is not supported"),
        ("ONBUILD RUN x", "ONBUILD is not supported"),
        ("FROM other AS -x", "'-x' is not the name of a stage"),
        ("CPOY a /b", "'CPOY' is not an instruction"),
        ("COPY --from=../x /a /b", "'../x' is not a valid image name"),
        ("COPY --link a /b", "COPY --link is not supported"),
        ("COPY a", "COPY requires a source and a target"),
        ("COPY a b /c", "several sources require a directory, got '/c'"),
        ("COPY ../a /b", "'../a' is outside the build's directory"),
        ("COPY a /tmp/", "files in '/tmp/' are not kept in an image"),
        ("COPY --chmod=u+x a /b", "--chmod='u+x' is not a valid mode"),
        ("COPY --chown=-x a /b", "--chown='-x' is not a valid owner"),
        ("COPY <<EOF /a\ntext\nEOF", "COPY of a here-document is not supported"),
        ("ADD https://h.test/x /x", "ADD of a URL is not supported"),
        ("ADD git@github.com:a/b.git /x", "ADD of a URL is not supported"),
        ("RUN", "RUN requires a command"),
        ("RUN --mount=type=cache,target=/x make", "RUN --mount is not supported"),
        ("RUN --network=host make", "RUN --network is not supported"),
        ("RUN <<EOF\nnever ends", "the here-document EOF has no end"),
        ("RUN <<EOF\n#!/bin/python\nEOF", "a here-document with #! is not supported"),
        ("ENV A", "ENV 'A' has no value"),
        ("ENV A=1 B", "'B' is not NAME=value"),
        ("ENV A=${B:x}", "${B} has an unknown modifier"),
        ("ENV A='b", "a single quote has no end"),
        ("ENV A=${B:?missing}", "B: missing"),
        ("COPY a /var/tmp/", "files in '/var/tmp/' are not kept in an image"),
        ("WORKDIR /workspace/x", "files in '/workspace/x' are not kept in an image"),
        ("WORKDIR $NONE", "WORKDIR requires a directory"),
        ("USER --x", "'--x' is not a valid user"),
        ("ARG 1=2", "'1' is not a name"),
    ],
)  # fmt: skip
def test_anything_else_is_an_error_with_its_line(line, what):
    with pytest.raises(InvalidRequest) as refused:
        steps("# comment", "RUN true", line)
    assert refused.value.message == f"Dockerfile line 4: {what}"
    assert refused.value.details["line"] == 4
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "the Dockerfile has no FROM"),
        (b"RUN x", "Dockerfile line 1: RUN before FROM"),
        (b"FROM", "Dockerfile line 1: FROM must name one image"),
        (b"FROM --platform=linux/arm64 a", "Dockerfile line 1: FROM --platform is not supported"),
        (b"FROM a b", "Dockerfile line 1: FROM must name one image"),
        (b"# syntax=evil/frontend\nFROM a", "line 1: syntax 'evil/frontend' is not supported"),
        (b"# escape=x\nFROM a", "line 1: 'x' cannot be the escape character"),
        (b"FROM a\nRUN \xff", "the Dockerfile is not UTF-8"),
        (b"FROM a\nRUN \0", "the Dockerfile contains a NUL character"),
        (b"FROM a\n" + b"RUN x\n" * 101, "the Dockerfile has more than 100 instructions"),
        (b"FROM a\n#" + b"x" * (1 << 20), "the Dockerfile is larger than 1048576 bytes"),
        (b"FROM ../a", "Dockerfile line 1: "),
    ],
)
def test_an_invalid_dockerfile_is_refused(text, what):
    with pytest.raises(InvalidRequest) as refused:
        parse_dockerfile(text, {})
    assert what in refused.value.message


# ---- variables ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A-$B", "1-"),
        ("${A}x${EMPTY}", "1x"),
        ("${EMPTY:-d}${EMPTY-d}${B:-d}${B-d}", "ddd"),
        ("${A:+y}${EMPTY:+y}${EMPTY+z}${B+y}", "yz"),
        ("${B:-${A:-2}}${B:-'a}b'}", "1a}b"),
        (r"\$A $ $1 '\$A' \"x", r"$A $ $1 \$A " + '"x'),
        (r'"a \$A \n \" $A"', r"a $A \n " + '" 1'),
        ("'$A'\"'$A'\"", "$A'1'"),
    ],
)
def test_variables_and_quotes_are_those_of_docker(text, value):
    assert expand(text, {"A": "1", "EMPTY": ""}, "\\") == value


@pytest.mark.parametrize("text", ["${A", "${}", "${A#x}", '"x', "'x", "${B:-" * 30])
def test_an_unfinished_word_is_an_error(text):
    with pytest.raises(WordError):
        expand(text, {"A": "1"}, "\\")


def test_a_value_cannot_double_without_end():
    values = {"A": "x" * 100}
    with pytest.raises(WordError, match="longer than"):  # noqa: PT012
        for _ in range(30):
            values["A"] = expand("$A$A", values, "\\")


def test_words_end_at_spaces_outside_of_quotes():
    assert split_words(r"""a "b c" 'd e'f g\ h""", "\\") == ["a", '"b c"', "'d e'f", r"g\ h"]


def test_arguments_before_from_are_seen_after_it_only_if_declared_again():
    text = b"ARG V=1\nARG W=$V.0\nFROM a:$W\nRUN a\nARG V\nRUN b\nENV V=3\nARG V=4\nRUN c"
    (file,) = parse_dockerfile(text, {})
    assert file.base == "a:1.0"
    compiled = steps_of(file, ImageConfig(), CLOSED, NOTHING).steps
    assert [dict(step.env) for step in compiled if isinstance(step, Run)] == [{}, {"V": "1"}, {}]
    assert parse_dockerfile(text, {"V": "2"})[0].base == "a:2.0"
    with pytest.raises(InvalidRequest, match="has no ARG 'X'"):
        parse_dockerfile(text, {"X": "1"})


def test_values_of_one_env_line_are_those_before_it_and_of_the_base():
    base = ImageConfig(env={"PATH": "/bin", "A": "base"}, workdir="/base")
    compiled = steps("ENV A=new B=$A", "ENV PATH $PATH:/x  y", "WORKDIR x", base=base)
    assert compiled == (
        SetEnv({"A": "new", "B": "base"}),
        SetEnv({"PATH": "/bin:/x  y"}),
        SetWorkdir("/base/x"),
    )


def test_platform_arguments_exist_without_being_given():
    (run,) = steps("ARG TARGETARCH", "RUN x")
    assert isinstance(run, Run)
    assert run.env["TARGETARCH"] in ("amd64", "arm64", os.uname().machine)


def test_heredocs_are_scripts_or_input():
    compiled = steps(
        "RUN <<EOF\necho one\necho two\nEOF",
        "RUN python3 - <<-'END' > /x\n\tprint(1)\n\tEND",
        'RUN echo "<<EOF" $((1<<2)) <<<x',
        "RUN cat <<A <<B\na\nA\nb\nB",
    )
    assert commands(compiled) == [
        (*SH, "echo one\necho two\n"),
        (*SH, "python3 - <<-'END' > /x\nprint(1)\nEND\n"),
        (*SH, 'echo "<<EOF" $((1<<2)) <<<x'),
        (*SH, "cat <<A <<B\na\nA\nb\nB\n"),
    ]


def test_another_escape_character_leaves_backslashes_alone():
    text = b"# escape=`\nFROM a\nRUN dir `\n  C:\\\nENV A=C:\\x B=`$A"
    compiled = steps_of(parse_dockerfile(text, {})[0], ImageConfig(), CLOSED, NOTHING).steps
    assert commands(compiled) == [(*SH, "dir   C:\\")]
    assert compiled[1] == SetEnv({"A": "C:\\x", "B": "$A"})


# ---- files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "excluded", "included"),
    [
        ("*.pyc\n# comment\n\n", ["a.pyc"], ["d/a.pyc", "# comment"]),
        ("**/*.pyc", ["a.pyc", "d/e/a.pyc"], ["a.py"]),
        ("node_modules/", ["node_modules", "node_modules/x/y"], ["d/node_modules"]),
        ("/d/e", ["d/e", "d/e/f"], ["d", "e"]),
        ("d\n!d/keep", ["d", "d/x"], ["d/keep", "d/keep/x"]),
        ("*\n!src\nsrc/t?st[0-9]", ["a", "src/test1"], ["src", "src/a", "src/testx"]),
        ("a\\*", ["a*"], ["ab"]),
        ("[^a]b", ["xb"], ["ab"]),
    ],
)
def test_a_dockerignore_pattern_leaves_files_out(patterns, excluded, included):
    ignore = parse_dockerignore(patterns.encode())
    assert [path for path in excluded if not ignore.excludes(path)] == []
    assert [path for path in included if ignore.excludes(path)] == []


def test_an_invalid_dockerignore_pattern_is_named():
    with pytest.raises(InvalidRequest, match=r"\.dockerignore line 2: '\[a' is not a valid"):
        parse_dockerignore(b"x\n[a\n")


def test_what_is_ignored_is_neither_copied_nor_read(context):
    os.mkfifo(context / "src" / "fifo")
    ignore = parse_dockerignore(b"**/fifo\n**/*.pyc\nsrc/deep\n!src/deep/keep\nsecret\n.git")
    assert [entry.name for entry in pick(context, "src", ignore).entries] == [
        "", "deep", "deep/keep", "main.py", "out",
    ]  # fmt: skip
    with pytest.raises(BuildFailed, match=r"secret is left out by \.dockerignore"):
        pick(context, "secret", ignore)


def test_a_pattern_stands_for_several_sources_and_follows_no_link(context):
    step = Copy(("*.txt", "s*/main.p?"), "/x/", patterns=True)
    assert [picked.path for picked in pick_all(context, step)] == ["a.txt", "b.txt", "src/main.py"]
    for source in ("*.md", "src/out/pass*", "src/o*/passwd"):
        with pytest.raises(BuildFailed):
            pick_all(context, Copy((source,), "/x/", patterns=True))
    # Without patterns a star is a name.
    with pytest.raises(BuildFailed, match="cannot be copied"):
        pick_all(context, Copy(("*.txt",), "/x/"))


@pytest.mark.promise("P53")
def test_a_directory_that_is_too_large_is_refused_before_it_is_read(context):
    with (context / "large").open("wb") as file:
        file.truncate((8 << 30) + 1)
    with pytest.raises(BuildFailed, match="a copy has more than 8589934592 bytes"):
        pick(context, ".")


def test_add_refuses_an_archive_that_docker_would_unpack(context):
    tarfile.open(context / "a.tar", "w").close()
    tarfile.open(context / "a.tgz", "w:gz").close()
    for name in ("a.tar", "a.tgz"):
        with pytest.raises(BuildFailed, match=f"ADD would unpack the archive {name}"):
            pick_all(context, Copy((name,), "/x/", archives=False))
        assert pick_all(context, Copy((name,), "/x/"))
    assert pick_all(context, Copy(("a.txt",), "/x/", archives=False))
