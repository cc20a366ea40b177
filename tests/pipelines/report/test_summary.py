from builds import build_here
from image_files import scan_tree, write_zip


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
