"""Several sites as one dataset: nothing of two sites is taken for the same."""

import json
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from builds import IN_MEMORY, shards_of
from dicom_files import dicom_file
from image_files import grey_pixels, jpeg, png, write_tar, write_tree, write_zip

from pipelines import build_tfrecords, errors
from pipelines.engine.job import prepared
from pipelines.options import parse_options
from pipelines.shards.write import TaskWriter, open_image_writer
from pipelines.sources import archive
from pipelines.sources.sites import read_sites
from tfrecord_io import manifest, verify

FOLDER = 'source = "directory"\ninput = "{}"\n'


def scans(classes=("CNV", "NORMAL"), splits=("train", "test"), seed=0):
    """Returns files of two patients in each split, named as at every other site."""
    return {
        f"{split}/{label}/{label}-{patient}{place}-1.jpeg": jpeg(
            seed + 100 * place + 10 * k + patient
        )
        for place, split in enumerate(splits)
        for k, label in enumerate(classes)
        for patient in (1, 2)
    }


def write_sites(folder, **tables):
    """Writes sites.toml with the text of each table."""
    file = folder / "sites.toml"
    file.write_text("".join(f"[site.{name}]\n{text}\n" for name, text in tables.items()))
    return file


@pytest.fixture
def two_sites(tmp_path):
    """The path of a file with a zip in London and a folder in Zurich, of the same file names."""
    (tmp_path / "in").mkdir()
    write_zip(tmp_path / "in" / "london.zip", {f"oct/{n}": c for n, c in scans().items()})
    write_tree(tmp_path / "in" / "zurich", scans(seed=1000))
    return write_sites(
        tmp_path / "in",
        london='source = "archive"\ninput = "london.zip"\n',
        zurich=FOLDER.format("zurich"),
    )


def flags(sites, output, *more):
    return ["--source=sites", f"--input={sites}", f"--output={output}", "--image_size=8", *more]


def build(sites, output, *more):
    return build_tfrecords.main(flags(sites, output, IN_MEMORY, *more))


def rows_of(output):
    return pq.read_table(output / "examples.parquet").to_pylist()


def test_scans_of_the_same_name_at_two_sites_are_two_scans_of_two_patients(two_sites, tmp_path):
    assert build(two_sites, tmp_path / "out") == 0
    rows = {row["path"]: row for row in rows_of(tmp_path / "out")}
    assert len(rows) == len({row["key"] for row in rows.values()}) == 16
    london = rows["london/oct/train/CNV/CNV-10-1.jpeg"]
    zurich = rows["zurich/train/CNV/CNV-10-1.jpeg"]
    assert (london["site"], london["patient"]) == ("london", "london/10")
    assert (zurich["site"], zurich["patient"]) == ("zurich", "zurich/10")
    assert {row["split"] for row in rows.values()} == {"train", "test"}
    found = manifest.Manifest.load(tmp_path / "out")
    assert found.label_names == ("CNV", "NORMAL")
    assert found.source == {
        "kind": "sites",
        "sites": {
            "london": {"kind": "archive", "name": "london.zip"},
            "zurich": {"kind": "directory", "name": "zurich"},
        },
    }


def test_verify_decodes_the_scans_of_each_site_again(two_sites, tmp_path):
    build(two_sites, tmp_path / "out")
    assert verify.verify(tmp_path / "out", source_input=two_sites) == []
    (tmp_path / "in/zurich/test/CNV/CNV-11-1.jpeg").write_bytes(png(7))
    (finding,) = verify.verify(tmp_path / "out", source_input=two_sites)
    assert "zurich/test/CNV/CNV-11-1.jpeg" in str(finding)
    write_sites(tmp_path / "in", london='input = "london.zip"')
    with pytest.raises(OSError, match=r"no table \[site\.zurich\]"):
        verify.verify(tmp_path / "out", source_input=two_sites)


def test_a_complete_dataset_of_tar_gz_files_is_known_without_unpacking_them_again(
    tmp_path, monkeypatch, capsys
):
    for place, name in enumerate(("london", "zurich")):
        write_tar(tmp_path / f"{name}.tar.gz", scans(seed=1000 * place))
    tables = {
        name: f'source = "archive"\ninput = "{name}.tar.gz"\n' for name in ("london", "zurich")
    }
    sites = write_sites(tmp_path, **tables)
    assert build(sites, tmp_path / "out") == 0
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(archive, "_gunzip", None)
        assert build(sites, tmp_path / "out") == 0
    said = "".join(capsys.readouterr())
    assert "is complete" in said
    assert "listing" not in said
    write_sites(tmp_path, london=tables["london"], zurich=tables["zurich"] + 'split = "test"\n')
    assert build(sites, tmp_path / "out") == 2
    assert "sites: " in capsys.readouterr().err


def test_rejects_of_all_sites_count_together_under_their_sites(two_sites, tmp_path, capsys):
    (tmp_path / "in/zurich/test/CNV/CNV-11-1.jpeg").write_bytes(b"damaged")
    (tmp_path / "in/zurich/loose.jpeg").write_bytes(jpeg(1))
    assert build(two_sites, tmp_path / "out", "--max_reject_fraction=0.1") == 1
    assert "2 of 17 images were rejected" in capsys.readouterr().err
    assert build(two_sites, tmp_path / "out", "--max_reject_fraction=0.2") == 0
    table = (tmp_path / "out/rejects.csv").read_text()
    assert "zurich/loose.jpeg,no_label" in table
    assert "zurich/test/CNV/CNV-11-1.jpeg,not_an_image" in table
    assert verify.verify(tmp_path / "out") == []


def test_a_site_all_of_whose_files_are_damaged_does_not_just_disappear(two_sites, tmp_path, capsys):
    for path in (tmp_path / "in/zurich").rglob("*.jpeg"):
        path.write_bytes(b"damaged")
    assert build(two_sites, tmp_path / "out", "--max_reject_fraction=0.9") == 1
    message = capsys.readouterr().err
    assert "site zurich has no image left: all its files were rejected, such as zurich/" in message


@pytest.mark.parametrize(
    "splits", [(), ("--splits=patient", "--split_fractions=train=0.4,val=0.4,test=0.2")]
)
def test_a_site_that_is_held_out_is_the_whole_test_split(splits, tmp_path):
    for site in ("a", "b"):
        write_tree(tmp_path / site, {
            f"{label}/{label}-{n}-1.jpeg": jpeg(1000 * ord(site) + 100 * k + n)
            for n in range(12) for k, label in enumerate(("CNV", "NORMAL"))
        })  # fmt: skip
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b") + 'split = "test"\n')
    assert build(sites, tmp_path / "out", *splits) == 0
    places = {(row["site"], row["split"]) for row in rows_of(tmp_path / "out")}
    expected = {("a", "train"), ("b", "test")}
    assert places == (expected | {("a", "val")} if splits else expected)


def test_sites_that_all_keep_their_split_leave_nothing_to_divide(tmp_path, capsys):
    write_tree(tmp_path / "a", scans())
    sites = write_sites(tmp_path, a=FOLDER.format("a") + 'split = "test"\n')
    assert build(sites, tmp_path / "out", "--splits=patient") == 2
    assert "finds no image to divide" in capsys.readouterr().err


def test_classes_that_are_spelled_differently_are_refused_until_one_is_renamed(tmp_path, capsys):
    write_tree(tmp_path / "a", scans(("CNV", "NORMAL")))
    write_tree(tmp_path / "b", scans(("cnv", "healthy"), seed=1000))
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b"))
    assert build(sites, tmp_path / "out") == 2
    assert "'CNV' (site a) and 'cnv' (site b) differ only in case" in capsys.readouterr().err
    names = '{ cnv = "CNV", healthy = "NORMAL" }'
    write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b") + f"rename = {names}\n")
    assert build(sites, tmp_path / "out") == 0
    assert manifest.Manifest.load(tmp_path / "out").label_names == ("CNV", "NORMAL")
    write_sites(tmp_path, a=FOLDER.format("a") + 'rename = { DME = "CNV" }', b=FOLDER.format("b"))
    assert build(sites, tmp_path / "out") == 2
    assert "site a: rename has 'DME'" in capsys.readouterr().err


def test_a_class_that_a_site_lacks_is_named_on_the_terminal_and_the_card(tmp_path, capsys):
    write_tree(tmp_path / "a", scans(("CNV", "NORMAL")))
    write_tree(tmp_path / "b", scans(("CNV", "DME"), seed=1000))
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b"))
    assert build(sites, tmp_path / "out") == 0
    note = "site a has no image of DME, which other sites have"
    assert note in capsys.readouterr().err
    assert note in (tmp_path / "out/report.html").read_text()
    assert build(sites, tmp_path / "chosen", "--classes=CNV") == 0
    assert "has no image" not in capsys.readouterr().err
    assert manifest.Manifest.load(tmp_path / "chosen").counts["ignored"] == {"class_not_chosen": 8}


def test_label_tables_of_sites_may_have_different_columns(tmp_path):
    for site, table in {
        "a": "path,label,patient,age,bmi,beds\n1.png,sick,7,63,22,\n2.png,well,8,,23,\n",
        "b": "path,label,patient,age,ward,bmi,beds\n"
        "1.png,sick,7,about 60,east,20.5,4\n2.png,well,9,50,west,21,5\n",
    }.items():
        write_tree(tmp_path / site, {"1.png": png(ord(site)), "2.png": png(2 * ord(site))})
        (tmp_path / f"{site}.csv").write_text(table)
    tables = {site: FOLDER.format(site) + f'labels = "{site}.csv"\n' for site in "ab"}
    sites = write_sites(tmp_path, **tables)
    assert build(sites, tmp_path / "out") == 0
    rows = {row["path"]: row for row in rows_of(tmp_path / "out")}
    assert {path: (row["patient"], row["age"], row["ward"]) for path, row in rows.items()} == {
        "a/1.png": ("a/7", "63", None),
        "a/2.png": ("a/8", None, None),
        "b/1.png": ("b/7", "about 60", "east"),
        "b/2.png": ("b/9", "50", "west"),
    }
    assert [rows[path]["bmi"] for path in sorted(rows)] == [22.0, 23.0, 20.5, 21.0]
    assert [rows[path]["beds"] for path in sorted(rows)] == [None, None, 4, 5]
    (tmp_path / "b.csv").write_text("path,label,site\n1.png,sick,x\n")
    with pytest.raises(errors.UserError, match="has the column site, which"):
        parse_options(flags(sites, tmp_path / "out"))


def test_either_all_sites_have_weights_or_none(tmp_path, capsys):
    for site, table in {"a": "path,label,weight\n1.png,sick,2\n", "b": ""}.items():
        write_tree(tmp_path / site, {"sick/1.png" if not table else "1.png": png(ord(site))})
        (tmp_path / f"{site}.csv").write_text(table)
    tables = {"a": FOLDER.format("a") + 'labels = "a.csv"\n', "b": FOLDER.format("b")}
    assert build(write_sites(tmp_path, **tables), tmp_path / "out") == 2
    assert "the images of some sites have a weight, those of others" in capsys.readouterr().err


def test_several_labels_need_a_table_of_each_site(tmp_path, capsys):
    for site, mass in (("a", 1), ("b", 0)):
        write_tree(tmp_path / site, {f"{n}.png": png(ord(site) + n) for n in range(2)})
        rows = "".join(f"{n}.png,{n},{mass}\n" for n in range(2))
        (tmp_path / f"{site}.csv").write_text(f"path,effusion,mass\n{rows}")
    tables = {site: FOLDER.format(site) + f'labels = "{site}.csv"\n' for site in "ab"}
    columns = "--label_columns=effusion,mass"
    assert build(write_sites(tmp_path, **tables), tmp_path / "out", columns) == 0
    assert "site b has no image of mass, which" in capsys.readouterr().err
    texts = {row["path"]: row["label"] for row in rows_of(tmp_path / "out")}
    assert texts == {"a/0.png": "mass", "a/1.png": "effusion|mass", "b/0.png": "none",
                     "b/1.png": "effusion"}  # fmt: skip
    tables["b"] = FOLDER.format("b")
    assert build(write_sites(tmp_path, **tables), tmp_path / "out", columns) == 2
    assert "needs --labels (for each site)" in capsys.readouterr().err


def test_patients_of_dicom_tags_belong_to_their_site_and_frames_are_counted(tmp_path):
    for number, site in enumerate("ab"):
        pixels = np.stack([grey_pixels(2 * number), grey_pixels(2 * number + 1)])
        content = dicom_file(pixels, {(0x0010, 0x0020, "LO"): "7"})
        write_tree(tmp_path / site, {"CNV/1.dcm": content, "NORMAL/2.dcm": content})
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b"))
    assert build(sites, tmp_path / "out") == 0
    found = manifest.Manifest.load(tmp_path / "out")
    assert found.counts["files"] == 8
    assert "pydicom" in found.options["decoder"]
    patients = {row["site"]: row["patient"] for row in rows_of(tmp_path / "out")}
    assert patients["a"].partition("/")[2] == patients["b"].partition("/")[2]
    assert patients["a"] != patients["b"]
    assert verify.verify(tmp_path / "out", source_input=sites) == []


@pytest.mark.parametrize(
    "change", ['split = "val"', 'rename = { CNV = "AMD" }', 'group_regex = "(x)"']
)
def test_what_decides_labels_patients_or_splits_of_a_site_is_in_the_fingerprint(
    change, two_sites, tmp_path, capsys
):
    assert build(two_sites, tmp_path / "out") == 0
    assert build(two_sites, tmp_path / "out") == 0
    assert "is complete" in capsys.readouterr().out
    two_sites.write_text(two_sites.read_text() + change)
    assert build(two_sites, tmp_path / "out") == 2
    assert "sites: " in capsys.readouterr().err


def test_a_build_of_sites_goes_on_where_a_worker_with_a_pickled_job_stopped(two_sites, tmp_path):
    build(two_sites, tmp_path / "whole", "--num_shards=2")
    words = flags(two_sites, tmp_path / "out", "--num_shards=2")
    with prepared(parse_options(words)) as job:
        sent = pickle.loads(pickle.dumps(job.build))
        with TaskWriter(sent, open_image_writer) as writer:
            writer.write(job.todo[0])
            writer.wait()
    with prepared(parse_options(words)) as job:
        assert len(job.todo) == 3
    build(two_sites, tmp_path / "out", "--num_shards=2")
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "whole")


def test_a_scan_that_two_sites_have_is_dropped_from_the_less_protected_split(tmp_path):
    write_tree(tmp_path / "a", scans())
    write_tree(tmp_path / "b", scans())
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b") + 'split = "test"\n')
    assert build(sites, tmp_path / "out", "--leaks=drop", "--image_size=64") == 0
    assert not [row for row in rows_of(tmp_path / "out") if row["split"] == "train"]
    assert manifest.Manifest.load(tmp_path / "out").counts["dropped"] != {}


def test_an_anonymous_dataset_names_the_sites_and_tells_their_patients_apart(two_sites, tmp_path):
    secret = tmp_path / "private" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("s" * 40)
    two_sites.write_text(two_sites.read_text() + 'group_regex = "-([0-9]+)-"\n')
    assert build(two_sites, tmp_path / "out", f"--anonymize={secret}") == 0
    rows = rows_of(tmp_path / "out")
    assert {row["site"] for row in rows} == {"london", "zurich"}
    assert len({row["patient"] for row in rows}) == 8
    text = (tmp_path / "out/manifest.json").read_text()
    assert "london.zip" not in text
    assert "[0-9]" not in json.loads(text)["options"]["sites"]
    (names,) = secret.parent.glob("*.parquet")
    assert verify.verify(tmp_path / "out", source_input=two_sites, names=names) == []


def test_a_secret_inside_the_folder_of_a_site_is_refused(two_sites, tmp_path, capsys):
    (tmp_path / "in/zurich/secret.txt").write_text("s" * 40)
    flag = f"--anonymize={tmp_path / 'in/zurich/secret.txt'}"
    assert build(two_sites, tmp_path / "out", flag) == 2
    assert "is inside --input" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    ['input = "Doe"', 'Doe = "x"', 'tree = ["Doe"]', 'split = "Doe 1"', 'group_regex = "(Doe"'],
)
def test_what_is_wrong_in_a_file_of_sites_is_not_told_to_the_terminal(
    more, two_sites, tmp_path, capfd
):
    secret = tmp_path / "private" / "secret.txt"
    secret.parent.mkdir()
    secret.write_text("s" * 40)
    two_sites.write_text(f"{two_sites.read_text()}{more}\n")
    assert build(two_sites, tmp_path / "out", f"--anonymize={secret}") == 2
    assert "secret.txt.error.txt" in (said := "".join(capfd.readouterr()))
    for word in ("Doe", "sites.toml"):
        assert word not in said
    assert "site" in secret.with_name("secret.txt.error.txt").read_text()


def test_the_site_whose_input_no_remote_worker_can_read_is_named(two_sites, tmp_path):
    words = flags(two_sites, "gs://bucket/out", "--runner=DataflowRunner", "--staging=gs://b/s")
    two_sites.write_text("\n".join(two_sites.read_text().splitlines()[4:]))
    with (
        pytest.raises(errors.UserError, match="site zurich: --source directory reads from a disk"),
        prepared(parse_options(words)),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[site.a", "could not be read as TOML"),
        ("", "received an empty file"),
        ("[a]\n[site.b]", "received a, site"),
        ('[site."a/b"]', "must have a name of letters"),
        ("site.a = 1", "is not a table"),
        ('[site.a]\nsource = "synthetic"', "source = 'synthetic', expected 'archive'"),
        ('[site.a]\nsource = "archive"', "needs input"),
        ('[site.a]\nsource = "kaggle"\ninput = "x"', "needs kaggle_dataset, and no input"),
        ('[site.a]\nsource = "archive"\nimput = "x"', "has imput, expected group_regex"),
        ('[site.a]\nsource = "archive"\ninput = 1', "has input = 1, expected text"),
        ('[site.a]\nsource = "archive"\ninput = "x"\nsplit = "Fold 1"', "split 'Fold 1'"),
        ('[site.a]\nsource = "archive"\ninput = "x\\u0000"', "expected text"),
        ('[site.a]\nsource = "archive"\ninput = "x"\nrename = "x"', "expected a table such as"),
        ('[site.a]\nsource = "archive"\ninput = "x"\nrename = { x = "" }', "x = '', expected text"),
    ],
)  # fmt: skip
def test_a_file_of_sites_that_cannot_be_used_is_an_error_that_says_what_it_needs(
    text, message, tmp_path
):
    file = tmp_path / "sites.toml"
    file.write_text(text)
    with pytest.raises(errors.UserError, match=str(file)) as raised:
        read_sites(file)
    assert message in str(raised.value)


def test_two_sites_cannot_download_archives_of_one_name(tmp_path):
    tables = {site: f'source = "kaggle"\nkaggle_dataset = "{site}/oct"' for site in "ab"}
    with pytest.raises(errors.UserError, match=r"2 sites download oct\.zip"):
        read_sites(write_sites(tmp_path, **tables))


def test_two_sites_with_the_same_images_are_refused(tmp_path, capsys):
    write_tree(tmp_path / "a", scans())
    (tmp_path / "link").symlink_to(tmp_path / "a")
    sites = write_sites(tmp_path, a=FOLDER.format("a"), b=FOLDER.format("./link/train"))
    assert build(sites, tmp_path / "out") == 2
    assert "the input of [site.b] is also in that of [site.a]" in capsys.readouterr().err


def test_two_sites_may_be_two_trees_of_one_folder(tmp_path):
    write_tree(tmp_path / "in", {f"{tree}/{n}": c for tree in "ab" for n, c in scans().items()})
    tables = {tree: FOLDER.format("in") + f'tree = "{tree}"\n' for tree in "ab"}
    assert build(write_sites(tmp_path, **tables), tmp_path / "out") == 0


def test_an_archive_of_a_site_may_lie_in_the_folder_of_another(tmp_path):
    archive = 'source = "archive"\ninput = "in/b.zip"'
    assert len(read_sites(write_sites(tmp_path, a=FOLDER.format("in"), b=archive))) == 2


def test_a_split_of_a_site_has_the_names_that_folders_and_tables_have(tmp_path):
    write_tree(tmp_path / "a", scans())
    write_tree(tmp_path / "b", scans(seed=1000))
    sites = write_sites(
        tmp_path, a=FOLDER.format("a"), b=FOLDER.format("b") + 'split = "Testing"\n'
    )
    assert build(sites, tmp_path / "out") == 0
    assert set(manifest.Manifest.load(tmp_path / "out").splits) == {"train", "test"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('group_regex = "("', "site a: group_regex '(' is not a valid pattern"),
        ('labels = "none.csv"', "site a: --labels "),
    ],
)
def test_an_option_of_a_site_that_cannot_be_used_names_the_site(more, message, tmp_path, capsys):
    write_tree(tmp_path / "a", scans())
    sites = write_sites(tmp_path, a=FOLDER.format("a") + more)
    assert build(sites, tmp_path / "out") == 2
    assert message in capsys.readouterr().err


def test_a_file_of_sites_may_begin_with_a_mark_of_its_encoding_and_name_the_home_folder(
    two_sites, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(two_sites.parent))
    text = two_sites.read_text().replace('"london.zip"', '"~/london.zip"')
    two_sites.write_text(text, encoding="utf-8-sig")
    assert build(two_sites, tmp_path / "out") == 0
    assert verify.verify(tmp_path / "out", source_input=two_sites) == []


def test_verify_says_which_site_is_not_on_this_machine(two_sites, tmp_path):
    build(two_sites, tmp_path / "out")
    two_sites.write_text(two_sites.read_text().replace('"zurich"', '"s3://bucket/zurich"'))
    with pytest.raises(OSError, match=r"\[site\.zurich\] is not a local file or folder"):
        verify.verify(tmp_path / "out", source_input=two_sites)


def test_a_kaggle_dataset_of_a_site_must_have_an_owner(tmp_path, capsys):
    sites = write_sites(tmp_path, a='source = "kaggle"\nkaggle_dataset = "oct"')
    assert build(sites, tmp_path / "out") == 2
    assert "is named OWNER/NAME" in capsys.readouterr().err


def test_paths_of_a_file_of_sites_start_at_its_folder_and_urls_stay(tmp_path):
    sites = write_sites(
        tmp_path,
        a='source = "archive"\ninput = "a.zip"\nlabels = "a.csv"',
        b='source = "archive"\ninput = "s3://bucket/b.zip"',
    )
    a, b = read_sites(sites)
    assert a.input == str(tmp_path / "a.zip")
    assert a.labels == tmp_path / "a.csv"
    assert b.input == "s3://bucket/b.zip"
