"""Results go into one zip and come back the same; a damaged or hostile one is refused in a line and changes nothing."""

import json
import stat
import zipfile

import pytest
from fixtures.rows import make_run

from formerlab.__main__ import main
from formerlab.archive import MANIFEST, archive, import_archive
from formerlab.errors import UserError


@pytest.fixture
def packed(tmp_path):
    """The archive of two runs, one of which is not finished, and its folder."""
    root = tmp_path / "there" / "live" / "smoke"
    make_run(root, "denseformer", "plain-8")
    (make_run(root, "denseformer", "plain-16") / "run.json").unlink()
    (root / "denseformer/plain-8/seed0/checkpoint").mkdir()
    for name, text in (("denseformer/plain-8/seed0/checkpoint/last.pt", "large"), ("data/text/train.npy", "text")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "data/text/manifest.json").write_text("{}")
    (root / "exact.csv").write_text("claim,name,value\n")
    archive(root, tmp_path / "a.zip")
    return tmp_path


def contents(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def rewrite(path, out, change=None, **added):
    """Write the archive again with changed or further members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(name, content) if change else content)
        for name, content in added.get("members", {}).items():
            new.writestr(name, content)


def test_what_comes_out_is_what_went_in(packed):
    manifest, new = import_archive(packed / "a.zip", packed / "here")
    there, here = packed / "there/live/smoke", packed / "here/smoke"
    assert manifest.runs == 1
    assert len(new) == len(manifest.files)
    assert set(contents(here)) == {
        *(f"denseformer/plain-8/seed0/{name}" for name in ("run.json", "run.yaml", "weights.safetensors")),
        *(f"denseformer/plain-8/seed0/{name}.csv" for name in ("train", "timing", "eval", "test")),
        *("data/text/manifest.json", "exact.csv"),
    }
    for name, content in contents(here).items():
        assert (there / name).read_bytes() == content
        assert (there / name).stat().st_mtime_ns == (here / name).stat().st_mtime_ns
    assert import_archive(packed / "a.zip", packed / "here")[1] == [], "again, nothing is new"
    assert [path.name for path in (packed / "here").iterdir()] == ["smoke"]


def test_another_file_in_its_place_is_kept(packed):
    import_archive(packed / "a.zip", packed / "here")
    own = packed / "here/smoke/denseformer/plain-8/seed0/test.csv"
    own.write_text("mine")
    with pytest.raises(UserError, match="exists and differs from the archive; move it away"):
        import_archive(packed / "a.zip", packed / "here")
    assert own.read_text() == "mine"


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_archive_is_refused(packed, share):
    whole = (packed / "a.zip").read_bytes()
    (packed / "b.zip").write_bytes(whole[: int(share * len(whole))])
    refused(packed, "not a whole archive")


def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(packed):
    whole = bytearray((packed / "a.zip").read_bytes())
    whole[len(whole) // 3] ^= 1
    (packed / "b.zip").write_bytes(bytes(whole))
    refused(packed, "copy it again")


def test_a_wrong_hash_is_refused(packed):
    rewrite(
        packed / "a.zip", packed / "b.zip", lambda n, c: c.replace(b"weights", b"wEights") if n.endswith("ors") else c
    )
    refused(packed, "weights.safetensors' has not the hash in its manifest")


def test_a_wrong_size_is_refused_before_it_is_written(packed):
    rewrite(packed / "a.zip", packed / "b.zip", lambda n, c: c * 1000 if n.endswith("ors") else c)
    refused(packed, "weights.safetensors' has not the size in its manifest")


@pytest.mark.parametrize("name", ["../evil", "/evil", "denseformer/../../evil", "a\\..\\evil", "C:/evil"])
def test_a_path_to_elsewhere_is_refused(packed, name):
    rewrite(packed / "a.zip", packed / "b.zip", members={name: "x"})
    refused(packed, "is no plain file below its folder")
    assert not list(packed.rglob("evil*"))


def test_a_file_that_is_a_folder_too_is_refused(packed):
    rewrite(packed / "a.zip", packed / "b.zip", members={"exact.csv/evil": "x"})
    refused(packed, "holds a name twice")


def test_a_path_to_elsewhere_in_the_manifest_is_refused(packed):
    def change(name, content):
        return content.replace(b'"exact.csv"', b'"../evil"') if name == MANIFEST else content

    rewrite(packed / "a.zip", packed / "b.zip", change)
    refused(packed, "in the archive or in its manifest alone")


def test_a_link_is_refused(packed):
    link = zipfile.ZipInfo("denseformer/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    rewrite(packed / "a.zip", packed / "b.zip")
    with zipfile.ZipFile(packed / "b.zip", "a") as package:
        package.writestr(link, "/etc/passwd")
    refused(packed, "is no plain file below its folder")


def test_a_scale_that_leads_elsewhere_is_refused(packed):
    def change(name, content):
        return json.dumps(json.loads(content) | {"scale": "../x"}).encode() if name == MANIFEST else content

    rewrite(packed / "a.zip", packed / "b.zip", change)
    refused(packed, "is no name of a scale")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda manifest: manifest | {"schema_version": 2}, "schema 2, but this version reads schema 1"),
        (lambda manifest: {"scale": "smoke"}, "it was not written by this project"),
    ],
)
def test_another_manifest_is_refused(packed, change, message):
    def changed(name, content):
        return json.dumps(change(json.loads(content))).encode() if name == MANIFEST else content

    rewrite(packed / "a.zip", packed / "b.zip", changed)
    refused(packed, message)


def refused(packed, message):
    """The archive is refused with this message, in one line, and nothing of it is left."""
    with pytest.raises(UserError) as error:
        import_archive(packed / "b.zip", packed / "here")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(packed / "here") == {} if (packed / "here").exists() else True


def test_the_verb_says_what_is_wrong_in_one_line(packed, capsys, monkeypatch):
    monkeypatch.chdir(packed)
    assert main(["import-archive", "none.zip"]) == 2
    assert capsys.readouterr().err == "error: none.zip: no such file\n"
    assert main(["import-archive", "a.zip"]) == 0
    assert "(1 runs)" in capsys.readouterr().out
