"""Dockerfiles, built in a real store: stages, warnings, errors with their lines."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten.errors import BuildFailed, InvalidImage, InvalidRequest
from sandkasten_server.cli.main import main
from tests import imagekit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("store")
    sandkasten.Images(data_dir=path).import_archive(imagekit.busybox_tar(), name="box")
    return path


DOCKERFILE = """
ARG BASE=box
FROM ${BASE}:latest
ENV GREETING="hello there"
RUN echo app:x:1234:1234::/home/app:/bin/sh >> /etc/passwd && \\
    echo team:x:4321:app >> /etc/group && mkdir -p /home/app && chown 1234:1234 /home/app
WORKDIR /srv
COPY --chown=app:team *.txt src ./
ARG NAME=world
RUN false; echo "$GREETING $NAME $(id -u)" > said
USER app
RUN echo "$(id -u):$(id -g) $(id -G) $HOME $(grep CapEff /proc/self/status)" > /home/app/who
RUN ["sh", "-c", "echo $0 > /home/app/listed", "one"]
RUN cat > /home/app/here <<EOF
$NAME
EOF
ENTRYPOINT ["/srv/run"]
CMD ["serve"]
"""


@pytest.mark.promise("P53")
def test_a_dockerfile_builds_an_image_with_its_configuration(shared, context):
    (context / "Dockerfile").write_text(DOCKERFILE)
    (context / ".dockerignore").write_text("**/*.pyc\nb.txt\n")
    images = sandkasten.Images(data_dir=shared)
    built = images.build(context, name="app:1", build_args={"NAME": "moon"})
    image = built.image
    assert (image.names, image.user, image.workdir) == (("app:1",), "app", "/srv")
    assert (image.entrypoint, image.cmd) == (("/srv/run",), ("serve",))
    assert image.env["GREETING"] == "hello there"
    assert "NAME" not in image.env
    with sandkasten.Sandbox("app:1", profile="dev", data_dir=shared) as box:
        result = box.exec("cat said /home/app/*; ls /srv; stat -c %u:%g /srv/a.txt /home/app/who",
                         cwd="/srv")  # fmt: skip
    assert result.output.splitlines() == [
        "hello there moon 0",
        "moon",
        "one",
        "1234:1234 1234 4321 /home/app CapEff:\t0000000000000000",
        "a.txt", "deep", "main.py", "out", "said",
        "1234:4321",
        "1234:1234",
    ]  # fmt: skip
    assert images.build(context, name="app:1", build_args={"NAME": "moon"}).cached
    assert not images.build(context, name="app:1", build_args={"NAME": "sun"}).cached


@pytest.mark.promise("P53")
def test_stages_give_files_to_each_other(shared, context):
    (context / "Dockerfile").write_text("""
FROM box AS Build
ENV KEPT=1
WORKDIR /out
RUN mkdir -p sub/gone keep && echo one > sub/one && echo old > sub/gone/x && ln -s sub link
RUN rm -r sub/gone && chmod 750 sub && echo two > sub/two.txt && chmod 755 sub/two.txt
FROM nowhere:9 AS unused
RUN false
FROM build AS more
RUN echo three > sub/three.txt && ln -s /out/sub/one /absolute
FROM box
COPY --from=build /out/sub /a/
COPY --from=more /out/link/*.txt /b/
COPY --from=more /absolute /b/one
COPY --from=2 --chown=7:8 /out/sub/one /b/owned
COPY --from=box /bin/sh /b/
RUN ls /a > /listed; env | grep -c KEPT >> /listed || true
""")
    images = sandkasten.Images(data_dir=shared)
    assert "KEPT" not in images.build(context, name="staged:1").image.env
    with sandkasten.Sandbox("staged:1", profile="dev", data_dir=shared) as box:
        result = box.exec(
            "cat /listed; stat -c '%n %a %u:%g' /a /b/*; cat /b/owned /b/one; test -L /b/one || "
            "echo file; ls /out"
        )
    assert result.output.splitlines() == [
        "one", "two.txt", "0",
        "/a 750 0:0",
        "/b/one 644 0:0", "/b/owned 644 7:8", "/b/sh 755 0:0", "/b/three.txt 644 0:0",
        "/b/two.txt 755 0:0",
        "one", "one", "file",
        "ls: /out: No such file or directory",
    ]  # fmt: skip
    assert images.build(context, name="staged:1").cached
    assert list((shared / "images" / "making").iterdir()) == []


@pytest.mark.promise("P53")
def test_links_of_a_stage_do_not_lead_to_the_host(shared, context):
    """The second source goes through a link that the first one brought."""
    images = sandkasten.Images(data_dir=shared)
    # Not below /tmp, which is not part of an image.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        (context / "Dockerfile").write_text(f"""
FROM box AS hostile
RUN mkdir -p {outside} /a && ln -s {outside} /a/b && echo inside > /a/b/c
FROM box
COPY --from=hostile /a /a/b/c /srv/
""")
        images.build(context, name="linked:1")
        assert os.listdir(outside) == []
    with sandkasten.Sandbox("linked:1", data_dir=shared) as box:
        assert box.exec("cat /srv/c; readlink /srv/b").output.split() == ["inside", outside]


@pytest.mark.promise("P53")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM none-such", "Dockerfile line 1: "),
        ("FROM box\n\nCOPY --from=none-such /a /b", "Dockerfile line 3: "),
        ("FROM box\n\nCOPY nothing /b", "Dockerfile line 3, step 1/1 (copy nothing to /b): "),
        (
            "FROM box AS b\nENV A=1\nFROM box\nCOPY --from=b /none/x /b",
            "Dockerfile line 4, step 2/2 (copy none/x to /b): none/x does not exist in the stage",
        ),
        (
            "FROM box AS b\nFROM box\nCOPY --from=b /bin/*.none /b/",
            "Dockerfile line 3, step 1/1 (copy bin/*.none to /b/): no file of the stage or image "
            "matches bin/*.none",
        ),
        (
            "FROM box AS b\nFROM box\nCOPY --from=b /dev/null /b/",
            "Dockerfile line 3, step 1/1 (copy dev/null to /b/): ",
        ),
    ],
)
def test_an_error_of_from_and_copy_names_its_line(shared, context, text, message):
    (context / "Dockerfile").write_text(text)
    with pytest.raises((BuildFailed, InvalidImage)) as failed:
        sandkasten.Images(data_dir=shared).build(context)
    assert failed.value.message.startswith(message)
    assert failed.value.hint


IGNORED = """FROM box
LABEL a=1 b="two words"
EXPOSE 80
HEALTHCHECK CMD true
VOLUME /data
STOPSIGNAL SIGINT
MAINTAINER me
SHELL ["/bin/sh", "-ec"]
RUN false; true
"""


@pytest.mark.promise("P53")
def test_what_a_sandbox_has_no_use_for_is_ignored_with_a_warning(shared, context):
    (context / "Dockerfile").write_text(IGNORED)
    images = sandkasten.Images(data_dir=shared)
    with pytest.raises(BuildFailed, match="line 9"):
        images.build(context)
    (context / "Dockerfile").write_text(IGNORED.replace("false; ", ""))
    built = images.build(context)
    assert built.image.labels == {"a": "1", "b": "two words"}
    warnings = [warning.partition(" is ignored: ") for warning in built.warnings]
    assert [before for before, _, why in warnings if why] == [
        "Dockerfile line 3: EXPOSE",
        "Dockerfile line 4: HEALTHCHECK",
        "Dockerfile line 5: VOLUME",
        "Dockerfile line 6: STOPSIGNAL",
        "Dockerfile line 7: MAINTAINER",
    ]


def test_scratch_is_an_empty_base_and_an_image_needs_no_name(shared, context):
    (context / "Dockerfile").write_text("FROM scratch\nCOPY a.txt /a.txt\nCMD []\n")
    images = sandkasten.Images(data_dir=shared)
    built = images.build(context)
    assert (built.image.names, len(built.image.layers)) == ((), 1)
    assert images.inspect(built.image.id).id == built.image.id


def test_an_unknown_user_is_named(shared, context):
    (context / "Dockerfile").write_text("FROM box\nUSER ghost\nRUN id\n")
    with pytest.raises(BuildFailed) as failed:
        sandkasten.Images(data_dir=shared).build(context)
    assert failed.value.message == (
        "Dockerfile line 3, step 2/2 (run id): the image has no user 'ghost'"
    )


def test_the_command_line_builds_a_dockerfile(shared, context, capfd):
    (context / "Other").write_text("FROM box\nARG A\nRUN echo said $A\nEXPOSE 80\n")
    words = ["--data-dir", str(shared), "image", "build"]

    def said(*more: str) -> tuple[int | str | None, str, list[str]]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        out, err = capfd.readouterr()
        return ended.value.code or 0, out, err.splitlines()

    code, out, err = said("-t", "cli:1", "-f", str(context / "Other"), "--build-arg", "A=b",
                          str(context))  # fmt: skip
    assert (code, out, err[:2]) == (0, "cli:1\n", ["step 1/1: run echo said $A", "  said b"])
    assert err[2].startswith("warning: Dockerfile line 4: EXPOSE is ignored: ")
    code, out, err = said("-t", "cli:1", str(context))
    assert code != 0
    assert err[-1] == "hint: name the Dockerfile with -f"
    for wrong in (
        ["-t", "cli:1"],
        ["-f", "Steps.yaml", "--build-arg", "A=b", "cli:1"],
        ["-f", "Steps.yaml"],
        ["--debian", "bookworm", "-t", "a", "b"],
    ):
        assert said(*wrong)[0] == 2, wrong


@pytest.mark.parametrize("kind", ["fifo", "directory", "missing"])
def test_a_dockerfile_that_is_not_a_file_is_refused_at_once(shared, tmp_path, kind):
    path = tmp_path / "Dockerfile"
    if kind != "missing":
        (os.mkfifo if kind == "fifo" else os.mkdir)(path)
    with pytest.raises(InvalidRequest):
        sandkasten.Images(data_dir=shared).build(tmp_path)
    with pytest.raises(InvalidRequest, match="is not a directory"):
        sandkasten.Images(data_dir=shared).build(tmp_path / "none")
