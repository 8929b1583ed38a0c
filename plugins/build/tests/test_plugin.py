"""What the plugin provides, and its command."""

from __future__ import annotations

from sandkasten.model.images.image_info import ImageProgress
from sandkasten.plugins.installed import installed
from sandkasten_build.image_build import last_line
from sandkasten_runtime.images.image_plugins import IMAGES_GROUP, ImagePlugin


def test_the_plugin_provides_every_part_of_images():
    plugins = {plugin.name: plugin for plugin in installed(IMAGES_GROUP, ImagePlugin).plugins}
    plugin = plugins["build"]
    assert None not in (plugin.builder, plugin.packages, plugin.signatures)


def test_a_pipe_gets_every_line_of_a_build_once(capsys):
    with last_line(quiet=False) as show:
        assert show is not None
        for text in ("", "one", "\x1b[1mtwo\r"):
            show(ImageProgress("step 1", 0, text=text))
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[:2]) == ("", ["step 1", "  one"])
    assert len(err.splitlines()) == 3
    assert "\x1b" not in err
    with last_line(quiet=True) as silent:
        assert silent is None
