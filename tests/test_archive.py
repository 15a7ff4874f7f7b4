"""Results go into one zip and come back the same; a damaged or hostile one is refused in a line and changes nothing."""

import hashlib
import json
import os
import shutil
import stat
import time
import zipfile
from random import Random

import pytest
from fixtures.rows import make_run

import formerlab.results.archive as archives
from formerlab.__main__ import main
from formerlab.errors import UserError
from formerlab.files import beside
from formerlab.results.archive import MANIFEST, archive, import_archive


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


ODD_NAMES = {
    "elsewhere": ("../evil", "/evil", "denseformer/../../evil", "a\\..\\evil", "C:/evil", "a//evil", "./evil", "evil/"),
    "too long": ("evil" * 100, "ü" * 101 + "evil", "evil/" * 300 + "evil"),
    "two lines": ("a\nerror: evil", "\x1b[2Jevil", "\u202eevil"),
    "never archived": (".evil", "a/.train.state.json", "a/b/seed0/checkpoint/evil", "data/text/evil.npy"),
}


@pytest.mark.parametrize("name", [name for names in ODD_NAMES.values() for name in names])
def test_a_name_that_no_archive_has_is_refused(packed, name):
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


def with_manifest(packed, change):
    """Write an archive whose manifest is another; `change` gets and returns its values."""

    def changed(name, content):
        return json.dumps(change(json.loads(content))).encode() if name == MANIFEST else content

    rewrite(packed / "a.zip", packed / "b.zip", changed)


NEXT_DAY_AND_AN_HOUR = "90 000 seconds from now"


@pytest.mark.parametrize("moment", [2**63, 10**30, -1, 1e30, 10**19, NEXT_DAY_AND_AN_HOUR])
def test_an_absurd_time_is_refused(packed, moment):
    if moment == NEXT_DAY_AND_AN_HOUR:
        moment = (int(time.time()) + 90_000) * 10**9

    def change(manifest):
        manifest["files"]["exact.csv"]["modified_ns"] = moment
        return manifest

    with_manifest(packed, change)
    refused(packed, "yet to come" if moment in (2**63, 10**19) else "")


def zeros(packed, size, said=None):
    """Write an archive with one more file, of zeros, of which the manifest may say another size."""
    content = bytes(size)
    entry = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": said or size, "modified_ns": 0}
    with_manifest(packed, lambda manifest: manifest | {"files": manifest["files"] | {"zeros.csv": entry}})
    with zipfile.ZipFile(packed / "b.zip", "a", zipfile.ZIP_DEFLATED) as package:
        package.writestr("zeros.csv", content)


def test_what_would_grow_as_no_results_do_is_not_unpacked(packed, monkeypatch):
    zeros(packed, 20_000_000)
    assert "zeros.csv" in import_archive(packed / "b.zip", packed / "small")[1], "small archives may hold anything"
    monkeypatch.setattr(archives, "SMALL_BYTES", 1_000_000)
    monkeypatch.setattr(archives, "_unpack", None)
    refused(packed, "MB would become 0.0 GB, as no results do")


def test_sizes_are_judged_before_anything_is_unpacked(packed, monkeypatch):
    zeros(packed, 1000, said=999)
    monkeypatch.setattr(archives, "_unpack", None)
    refused(packed, "'zeros.csv' has not the size in its manifest")


def test_more_files_than_results_have_are_refused(packed, monkeypatch):
    monkeypatch.setattr(archives, "MOST_FILES", 9)
    rewrite(packed / "a.zip", packed / "b.zip")
    refused(packed, "holds 10 files, more than 9")


@pytest.mark.parametrize("form", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_a_form_that_is_never_written_is_refused(packed, form):
    rewrite(packed / "a.zip", packed / "b.zip")
    with zipfile.ZipFile(packed / "b.zip", "a", form) as package:
        package.writestr("more.csv", "x")
    refused(packed, "no plain file")


def test_what_stands_in_the_way_is_named_in_a_line(packed):
    (packed / "here/smoke").mkdir(parents=True)
    (packed / "here/smoke/denseformer").write_text("mine")
    with pytest.raises(UserError, match=r"a.zip: not unpacked as a whole .*denseformer.*; mend that and import again"):
        import_archive(packed / "a.zip", packed / "here")
    assert (packed / "here/smoke/denseformer").read_text() == "mine"


def test_what_a_killed_import_left_is_removed(packed):
    left = beside(packed / "here/smoke", "new")
    left = left.with_name(left.name.replace(str(os.getpid()), "999999999"))
    left.mkdir(parents=True)
    (packed / "here/.own.new").mkdir()
    import_archive(packed / "a.zip", packed / "here")
    assert {path.name for path in (packed / "here").iterdir()} == {"smoke", ".own.new"}


def test_files_of_any_age_are_archived(packed):
    os.utime(packed / "there/live/smoke/exact.csv", ns=(-(10**18), -(10**18)))
    assert archive(packed / "there/live/smoke", packed / "b.zip").files["exact.csv"].modified_ns == 0
    import_archive(packed / "b.zip", packed / "here")


def test_two_hundred_damages_are_refused_in_a_line_or_change_nothing(packed):
    """Bytes that are changed, lost or put in, most of them where a zip says what it holds: all or nothing comes out."""
    whole, random = (packed / "a.zip").read_bytes(), Random(0)
    import_archive(packed / "a.zip", packed / "sound")
    for _ in range(200):
        damaged = bytearray(whole)
        place = random.randrange(len(whole)) if random.random() < 0.3 else len(whole) - random.randrange(1, 900)
        match random.randrange(3):
            case 0:
                damaged[place] = random.randrange(256)
            case 1:
                del damaged[place : place + random.randrange(1, 9)]
            case 2:
                damaged[place:place] = random.randbytes(random.randrange(1, 9))
        (packed / "b.zip").write_bytes(damaged)
        try:
            import_archive(packed / "b.zip", packed / "here")
            message = ""
        except UserError as error:
            message = str(error)
        assert "\n" not in message
        assert bool(message) != (packed / "here/smoke").exists()
        if not message:
            assert contents(packed / "here") == contents(packed / "sound")
            shutil.rmtree(packed / "here")


def test_the_verb_says_what_is_wrong_in_one_line(packed, capsys, monkeypatch):
    monkeypatch.chdir(packed)
    assert main(["import-archive", "none.zip"]) == 2
    assert capsys.readouterr().err == "error: none.zip: no such file\n"
    assert main(["import-archive", "a.zip"]) == 0
    assert "(1 runs)" in capsys.readouterr().out
