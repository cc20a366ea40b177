"""The build as a user runs it: whole commands, killed, resumed, and given what it must refuse."""

import os
import re
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import builds
import numpy as np
import psutil
import pytest
from builds import build_here, files_of, run_build_here, shards_of
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import (
    encoded,
    grey_pixels,
    kermany_archive,
    scan_tree,
    scans_of,
    under,
    write_tree,
    write_zip,
)
from PIL import Image

from pipelines import errors
from tfrecord_io import __main__ as tools
from tfrecord_io.format.manifest import Manifest

NUM_SHARDS = "--num_shards=6"
FEW_REJECTS = "--max_reject_fraction=0.1"


PALETTE = Image.fromarray(grey_pixels(5)).convert("P")
#: 46 files: one cannot be decoded, and Pillow warns of another.
TREE = {
    **scan_tree({"train": 8, "val": 1, "test": 2}),
    "test/CNV/CNV-900-1.jpeg": b"no image",
    "train/CNV/CNV-901-1.png": encoded(PALETTE, transparency=b"\xff" * 256),
}


archive = scans_of(lambda: kermany_archive(TREE), "scans.zip")


UNDISTURBED = (NUM_SHARDS, FEW_REJECTS)


@pytest.fixture(scope="module")
def undisturbed(archive, tmp_path_factory):
    """A build by two workers that nothing disturbed."""
    output = tmp_path_factory.mktemp("undisturbed") / "out"
    words = builds.command(archive, output, *UNDISTURBED, "--direct_num_workers=2")
    assert builds.run_command(words).returncode == 0
    return output


def test_each_file_is_an_example_a_reject_a_copy_or_ignored(undisturbed):
    counts = Manifest.load(undisturbed).counts
    assert counts["files"] == len(kermany_archive(TREE))
    assert (counts["examples"], counts["rejects"], counts["copies"]) == (45, 1, 46)
    assert sum(counts["ignored"].values()) == counts["files"] - 2 * 46
    kept = TREE.keys() - {"test/CNV/CNV-900-1.jpeg"}
    paths = [row["path"] for row in builds.rows_of(undisturbed)]
    assert sorted(paths) == sorted(f"OCT2017 /{name}" for name in kept)


# ---- the same bytes, however


def test_one_process_writes_the_files_of_two_workers_and_warns_of_a_leak(
    undisturbed, archive, tmp_path, capsys
):
    output = build_here(archive, tmp_path / "out", *UNDISTURBED)
    assert files_of(output) == files_of(undisturbed)
    assert re.search(r"(?m)^warning: .*1 patient ", capsys.readouterr().out)


# ---- once


def marks_of(output):
    """Returns what tells whether a file was written again."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in output.iterdir()}


def test_a_complete_output_is_said_to_be_so_and_not_touched(undisturbed, archive, capsys):
    before = marks_of(undisturbed)
    assert run_build_here(archive, undisturbed, *UNDISTURBED) == 0
    assert "is complete: 45 examples" in capsys.readouterr().out
    assert marks_of(undisturbed) == before


# ---- too many rejects


def refusal(source, output, *flags):
    """Returns the message with which a build refuses to make a dataset."""
    with pytest.raises(errors.BuildError) as raised:
        build_here(source, output, *flags)
    assert not (output / "manifest.json").exists()
    return str(raised.value)


def test_too_many_rejects_are_refused_and_a_larger_limit_resumes(tmp_path):
    files = {**scan_tree({"train": 5}), "train/CNV/1.png": b"", "train/DME/2.png": b"?"}
    scans, output = write_tree(tmp_path / "scans", files), tmp_path / "out"
    for _ in range(2):
        message = refusal(scans, output, "--num_shards=3")
        assert "9.09%" in message
        assert f"{output}/rejects.csv" in message
        assert len(builds.csv_rows(output / "rejects.csv")) == 2
    shards = {item for item in marks_of(output).items() if item[0].endswith(".tfrecord")}
    build_here(scans, output, "--num_shards=3", FEW_REJECTS)
    assert len(shards) == 3
    assert shards <= set(marks_of(output).items())
    assert Manifest.load(output).counts["rejects"] == 2


def test_a_limit_does_not_inflate_the_share_of_what_the_listing_rejects(tmp_path):
    scans, output = write_tree(tmp_path / "scans", scan_tree({"train": 24})), tmp_path / "out"
    for number in range(4):
        (scans / f"train/CNV/{number}.png").symlink_to(tmp_path / "nowhere")
    message = refusal(scans, output, "--limit=8", "--max_reject_fraction=0.03")
    assert "4.00% of all 100, by this sample" in message
    # The listing's rejects are enough to refuse, so no image is decoded.
    assert not list(output.glob("*.tfrecord"))
    build_here(scans, output, "--limit=8", "--max_reject_fraction=0.05")


def test_a_class_without_an_image_left_is_refused_with_the_flags_to_leave_it_out(tmp_path):
    files = {**scan_tree({"train": 5}), "train/sheets/numbers.npy": b"numbers"}
    scans, output = write_tree(tmp_path / "scans", files), tmp_path / "out"
    message = refusal(scans, output, FEW_REJECTS)
    assert "class 'sheets' has no image left" in message
    advice = message.partition("run again with ")[2].split()
    found = Manifest.load(build_here(scans, output, FEW_REJECTS, *advice))
    assert found.label_names == ("CNV", "DME", "DRUSEN", "NORMAL")
    assert found.counts["files"] == 21


def test_no_name_in_an_archive_commands_a_terminal_or_a_spreadsheet_or_is_raw_in_a_report(
    tmp_path, capsys
):
    title = "\x1b]0;pwned\x07"
    files = scan_tree({"train": 5, "test": 2}, classes=["CNV", title])
    files |= {f"train/{title}/{title}.jpeg": b"", "train/CNV/-1.jpeg": b""}
    scans, output = write_zip(tmp_path / "a.zip", under("=cmd|calc", files)), tmp_path / "out"
    assert run_build_here(scans, output, f"--classes=CNV,{title},{title}2") == 2
    assert run_build_here(scans, output, "--max_reject_fraction=0.3", "--leaks=drop") == 0
    with (output / "train-00000-of-00001.tfrecord").open("r+b") as file:
        file.write(b"x")
    for words in ("audit", "verify"):
        tools.main([words, str(output)])
    done = capsys.readouterr()
    page = (output / "report.html").read_text()
    for text in (done.out, done.err, page, (output / "rejects.csv").read_text()):
        assert r"\x1b]0;pwned" in text
        assert "\x07" not in text
    for name in ("rejects.csv", "dropped.csv"):
        cells = [cell for row in builds.csv_rows(output / name) for cell in row]
        assert "'=cmd|calc/" in cells[0]
        assert not [cell for cell in cells if cell[:1] in ("=", "+", "-", "@")]


# ---- any tree at all

ANY_FILES = st.dictionaries(
    st.tuples(
        st.sampled_from(["train", "test", "a/train", "a/test", "__MACOSX", "b"]),
        st.sampled_from(["CNV", "DME"]),
        st.sampled_from(
            ["CNV-1-1.png", "2.png", "._3.png", ".DS_Store", "x.txt", "deep/4.png", " -_ß漢. .png"]
        ),
    ).map("/".join),
    st.sampled_from([encoded(grey_pixels(1)), encoded(grey_pixels(2)), b"", b"no image"]),
    min_size=1,
)


@settings(max_examples=8)
@given(files=ANY_FILES, limit=st.sampled_from([1, 3, 100]))
def test_whatever_the_tree_holds_every_file_is_accounted_for(tmp_path_factory, files, limit):
    folder = tmp_path_factory.mktemp("any")
    source = write_tree(folder / "scans", files)
    try:
        output = build_here(source, folder / "out", f"--limit={limit}", "--max_reject_fraction=1")
    except errors.UserError:
        return  # no image, or unrelated trees
    except errors.BuildError as error:
        assert "rejected" in str(error)  # all of the images, or all of a class  # noqa: PT017
        return
    found = Manifest.load(output)
    assert found.counts["files"] == len(files) == sum(count for _, count in found.ledger)
    num_bytes = sum(path.stat().st_size for path in output.glob("*.tfrecord"))
    assert num_bytes == found.counts["examples"] * found.layout.stride


# ---- workers in trouble


@pytest.fixture(scope="module")
def large_archive(tmp_path_factory):
    """Few, but large pictures, which keep two workers busy for some seconds."""
    rows = np.linspace(0, 255, 1400, dtype=np.float32)
    files = {}
    for k in range(9):
        pixels = (np.add.outer(rows, rows * k / 9) % 256).astype(np.uint8)
        names = [f"train/{c}/{c}-{k}-{n}.jpeg" for c in ("CNV", "NORMAL") for n in range(18)]
        files |= dict.fromkeys(names, encoded(pixels, "JPEG"))
    return write_zip(tmp_path_factory.mktemp("large") / "scans.zip", files)


LARGE = ("--num_shards=27", "--direct_num_workers=2")


def num_finished(output):
    return len(list(output.glob("train-*.json")))


def listening_ports(processes):
    """Returns the ports on which any of these processes takes connections."""
    return {
        connection.laddr.port
        for process in processes
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }


STOPS = {
    "terminal": signal.SIGINT,  # what Ctrl-C in a terminal does
    "closed": signal.SIGHUP,  # as a terminal does at its end
    "terminated": signal.SIGTERM,
    "killed launcher": signal.SIGKILL,  # as the kernel does for want of memory
}


@pytest.mark.slow
@pytest.mark.parametrize("way", STOPS)
def test_a_build_opens_no_port_and_when_it_is_stopped_goes_on_without_loss(
    large_archive, tmp_path, way
):
    output, stop = tmp_path / "out", STOPS[way]
    words = builds.command(large_archive, output, *LARGE)
    # Not below `tmp_path`, whose name is too long for the sockets of worker processes.
    scratch = Path(tempfile.mkdtemp())
    with builds.started(words, env={**os.environ, "TMPDIR": str(scratch)}) as process:
        assert builds.wait_until(lambda: num_finished(output) >= 1, process)
        everybody, workers = builds.members_of_group(process.pid), builds.workers_of(process)
        assert len(everybody) >= 1 + len(workers) >= 3
        assert listening_ports(everybody) == set()
        # On a fast machine it would be done before the second has seen it.
        for worker in workers:
            worker.suspend()
        second = builds.run_command(words)
        assert second.returncode == 2
        assert f"another process (process id {process.pid})" in second.stderr
        before = shards_of(output)
        for worker in workers:
            worker.resume()
        if way in ("terminal", "closed"):
            os.killpg(process.pid, stop)
        else:
            process.send_signal(stop)
        text, _ = process.communicate(timeout=60)
        assert builds.wait_until(lambda: not builds.members_of_group(process.pid))
        if stop != signal.SIGKILL:
            assert process.returncode == 128 + stop, text
            assert not list(scratch.iterdir())
            assert "Traceback" not in text
    shutil.rmtree(scratch)
    assert not (output / "manifest.json").exists()
    assert before.items() <= shards_of(output).items()
    finished = num_finished(output)
    done = builds.run_command(words)
    assert f"resuming: {finished} of 27 shards are finished" in done.stderr
    undisturbed = build_here(large_archive, tmp_path / "undisturbed", LARGE[0])
    assert files_of(output) == files_of(undisturbed)


def test_a_full_disk_is_a_clear_error(archive, tmp_path, capsys):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert run_build_here(archive, tmp_path / "out", "--image_size=300") == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search(r"error: cannot write .*File too large", capsys.readouterr().err)
    assert not (tmp_path / "out" / "manifest.json").exists()
