from builds import build_here, build_of
from image_files import kermany_archive, scan_tree, scans_of, write_zip

from pipelines.report import summary


def files():
    return kermany_archive(scan_tree({"train": 4, "test": 2}) | {"train/CNV/CNV-9-9.jpeg": b""})


scans = scans_of(files, "scans.zip")
output = build_of("scans", "--limit=15", "--num_shards=2", "--max_reject_fraction=0.5")


def test_the_end_says_what_there_is_and_what_became_of_every_file(output, capsys):
    summary.print_built(str(output), 2.0, 3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["split", "CNV", "DME", "DRUSEN", "NORMAL", "examples", "shards"]
    rows = {line.split()[0]: [int(cell) for cell in line.split()[1:]] for line in lines[1:3]}
    assert list(rows) == ["train", "test"]
    for row in rows.values():
        assert sum(row[:4]) == row[4]
    text = "\n".join(lines)
    num_examples = rows["train"][4] + rows["test"][4]
    num_files = 2 * 25 + 17 + 2
    assert f"{num_files} files:\n{num_examples:>9} examples in the dataset" in text
    assert "\n       25 copies in a second folder tree" in text
    assert "\n        2 left out by --limit" in text
    assert "\n       17 ignored: attributes kept by macOS" in text
    # The rate is that of this run alone, which found three images finished.
    assert "10 images/s over 2.0 s" in text
    assert f"{output}" in lines[-3]
    assert lines[-2].strip() == f"python -m tfrecord_io verify {output}"
    assert f"open {output}/report.html" in lines[-1]


def test_leaks_and_contradictions_are_said_in_the_last_lines_with_the_page(tmp_path, capsys):
    files = scan_tree({"train": 4, "test": 2})
    # Patient 100 is in both splits anyway; one picture is there under two labels.
    files["train/DME/DME-900-1.jpeg"] = files["train/CNV/CNV-100-0.jpeg"]
    output = build_here(write_zip(tmp_path / "scans.zip", files), tmp_path / "out")
    last = capsys.readouterr().out.splitlines()[-15:]
    found = [line for line in last if line.startswith("warning: the dataset's audit says: ")]
    told = "patient is in more than one split; results will be too good; build with --splits pat"
    assert any(told in line for line in found)
    assert any("picture is under contradicting labels" in line for line in found)
    assert all(line.endswith(f"see {output}/report.html") for line in found)
