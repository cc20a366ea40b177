"""Where a patient or a file still is: no kind of place is overlooked."""

import json
import shutil

import pyarrow.parquet as pq
import pytest
from builds import build_here, prepare, rows_of, write_csv
from dicom_files import dicom_file
from image_files import grey_pixels, jpeg, scan_tree, write_tar, write_tree, write_zip
from marked_images import marked_data, trained_run
from s3_server import BUCKET
from web_server import running_web

import tfrecord_io
from pipelines.shards.write import TaskWriter
from tfrecord_io.__main__ import main
from tfrecord_io.reading import cache

SECRET = "8f1d3c5a7b9e2046" * 4
PATIENT = "4711"


@pytest.fixture(autouse=True)
def no_other_cache(tmp_path, monkeypatch):
    """The user of these tests has no cache but the one that a test makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def find(capsys, tmp_path):
    """Runs the command for some patients; returns its lines, and with code 2 its errors, too."""

    def run(*words, patients=(PATIENT,), code=0):
        given = []
        if patients:
            listed = tmp_path / "patients.txt"
            listed.write_text("\n".join(patients))
            given = ["--patients", listed]
        capsys.readouterr()
        assert main(["find", *map(str, (*given, *words))]) == code
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        assert (printed.err == "") == (code < 2)
        return printed.out.splitlines() if code < 2 else (printed.out.splitlines(), printed.err)

    return run


def scans(patient=PATIENT):
    """Returns files of two patients, of whom the given one has a damaged file and a copy, too."""
    files = scan_tree({"train": 8, "test": 2}, classes=("CNV", "NORMAL"))
    own = {
        f"train/CNV/CNV-{patient}-{number}.jpeg": jpeg(900 + number, 40, 48) for number in range(3)
    }
    damaged = {f"train/CNV/CNV-{patient}-8.jpeg": b"no image"}
    leaked = {f"test/CNV/CNV-{patient}-7.jpeg": jpeg(907, 40, 48)}
    copy = {f"train/NORMAL/NORMAL-{patient}-9.jpeg": jpeg(900, 40, 48)}
    return files | own | damaged | copy | leaked


FLAGS = ("--max_reject_fraction=0.5", "--duplicates=drop")


def stopped(source, output, *flags):
    """Returns a build that was killed after its first shard."""
    flags = (*FLAGS, "--num_shards=2", *flags)
    with prepare(source, output, *flags) as job, TaskWriter(job.build) as writer:
        writer.write(next(task for task in job.todo if task.split == "train"))
        writer.wait()
    return output


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Datasets of a patient: finished, unfinished, and anonymous; and the patient's input."""
    folder = tmp_path_factory.mktemp("places")
    source = write_tree(folder / "in", scans())
    packed = write_tar(folder / "in.tar.gz", scans())
    (folder / "private").mkdir()
    secret = folder / "private" / "secret.txt"
    secret.write_text(SECRET)
    build_here(source, folder / "finished", "--num_shards=1", *FLAGS)
    stopped(packed, folder / "unfinished")
    build_here(source, folder / "anonymous", f"--anonymize={secret}", "--num_shards=1", *FLAGS)
    return folder


data = marked_data({"train": 20, "val": 10, "test": 20})
run = trained_run(epochs=1, learning_rate=1e-6)  # so bad that its page shows mistakes


def names_in(lines, folder):
    return {line.partition(": ")[0].removeprefix(f"{folder}/") for line in lines}


def test_a_dataset_says_its_splits_shards_and_rows_and_its_tables_and_page(places, find):
    output = places / "finished"
    lines = find(output)
    shard = "train-00000-of-00001"
    own = [row for row in rows_of(output) if row["patient"] == PATIENT]
    rows = ", ".join(str(row["row"]) for row in own if row["split"] == "train")
    assert f"{output / shard}.tfrecord: 2 images of 1 patient, in rows {rows}" in lines
    assert f"{output}/examples.parquet: 3 rows of 1 patient" in lines
    assert f"{output}/rejects.csv: 1 row of 1 patient" in lines
    tables = {"examples.parquet", "rejects.csv", "dropped.csv"}
    others = {f"{shard}.json", "manifest.json", "report.html"}
    shards = {f"{shard}.tfrecord", "test-00000-of-00001.tfrecord"}
    assert names_in(lines, output) == tables | others | shards


def test_an_unfinished_build_has_its_plan_its_shards_and_its_unpacked_input(places, find):
    output = places / "unfinished"
    lines = find(output)
    (tar,) = (output / ".build").glob("*.tar")
    found = names_in(lines, output)
    assert {".build/plan.arrow", f".build/{tar.name}"} <= found
    assert any(name.startswith(".build/train-") for name in found)
    assert any(name.startswith("train-") and name.endswith(".tfrecord") for name in found)
    assert any("planned by an unfinished build" in line for line in lines)


def test_the_input_is_found_as_files_and_in_archives(places, tmp_path, find):
    write_zip(tmp_path / "in.zip", scans())
    lines = find(tmp_path, places / "in")
    assert f"{tmp_path}/in.zip: 6 images of 1 patient in the archive" in lines
    assert f"{places}/in/train/CNV/: 4 images of 1 patient as files" in lines


def test_an_anonymous_dataset_is_found_by_its_secret_and_refused_without_it(places, find):
    output, secret = places / "anonymous", places / "private" / "secret.txt"
    lines, err = find(output, code=2)
    assert lines == []
    assert "anonymous; give its secret with --anonymize FILE" in err
    # Without the table of names, which is beside the secret, it finds what the other tables say.
    assert "examples.parquet" in names_in(find("--anonymize", secret, output), output)
    lines = find(output, "--anonymize", secret, secret.parent)
    (names,) = secret.parent.glob("*.parquet")
    assert names_in(lines, output) >= {
        "train-00000-of-00001.tfrecord", "examples.parquet", "rejects.csv", "dropped.csv",
        "report.html", str(names),
    }  # fmt: skip
    assert SECRET not in "".join(lines)


def test_the_plan_of_an_anonymous_build_is_found(places, tmp_path, find):
    secret = places / "private" / "secret.txt"
    with prepare(places / "in", tmp_path / "out", *FLAGS, f"--anonymize={secret}"):
        lines = find("--anonymize", secret, tmp_path / "out")
    assert f"{tmp_path}/out/.build/plan.arrow" in names_in(lines, places)


def test_a_run_has_seen_patients_and_its_predictions_and_page_show_those_of_the_test(run, find):
    tested = [f"test-{number}" for number in range(10)]
    lines = find(run, patients=["train-0", "train-1", *tested])
    seen = "its weights have seen 4 images of 2 patients; train it again"
    assert f"{run}/seen.parquet: {seen}" in lines
    names = {"seen.parquet", "predictions.csv", "predictions.npz", "report.html"}
    assert names_in(lines, run) == names


def test_a_run_on_an_anonymous_dataset_needs_its_secret(run, tmp_path, find):
    table = pq.read_table(run / "seen.parquet")
    origin = json.dumps({"patients": json.dumps(["code", "0" * 32, False])})
    pq.write_table(table.replace_schema_metadata({"origin": origin}), tmp_path / "seen.parquet")
    assert "seen.parquet was not searched: its dataset is anonymous" in find(tmp_path, code=2)[1]


def test_the_cache_of_a_dataset_that_was_read_by_url_is_found_without_the_dataset(
    data, tmp_path, find
):
    with running_web() as web:
        url = web.serve(data)
        list(tfrecord_io.make_batches(url, split="train", batch_size=4, seed=1, epochs=1))
    tables = tmp_path / "tables"
    tables.mkdir()
    shutil.copy(data / "examples.parquet", tables)
    (records,) = (tmp_path / "cache").glob("tfrecord_io/*/records")
    lines = find(tables, patients=["train-3"])
    assert f"{records}: 2 images of 1 patient in the reader's cache of a URL" in lines
    keys = set(cache.keys_in(records.parent))
    assert {row["key"] for row in rows_of(data) if row["split"] == "train"} == keys
    assert find(tables, patients=["val-3"])[-1].startswith(f"{tables}/examples.parquet")


def test_a_path_is_found_in_every_place_by_any_end_of_it(places, find, tmp_path):
    path = "train/CNV/CNV-4711-1.jpeg"
    for given in (path, f"/somewhere/in/{path}", "CNV-4711-1.jpeg"):
        listed = write_csv(tmp_path / "paths.csv", [{"note": "x", "path": given}])
        datasets = places / "finished", places / "unfinished"
        found = names_in(find("--paths", listed, *datasets, patients=None), places)
        assert {"finished/train-00000-of-00001.tfrecord", "finished/examples.parquet"} <= found
        assert "unfinished/.build/plan.arrow" in found
        assert "finished/rejects.csv" not in found
    # In an anonymous dataset by the secret.
    listed.write_text("path\nin/train/CNV/CNV-4711-1.jpeg\ntrain/CNV/CNV-4711-8.jpeg\n")
    words = "--paths", listed, "--anonymize", places / "private" / "secret.txt"
    found = names_in(find(*words, places / "anonymous", patients=None), places / "anonymous")
    assert {"examples.parquet", "rejects.csv"} <= found


def labelled(folder, rows, *flags):
    """Builds a dataset of a table, with a picture for each of its rows."""
    names = [row["path"] for row in rows]
    scans = write_tree(folder / "in", {name: jpeg(seed) for seed, name in enumerate(names)})
    rows = [
        {"split": "train", "label": "CNV" if n % 2 else "NORMAL"} | r for n, r in enumerate(rows)
    ]
    return build_here(
        scans, folder / "out", f"--labels={write_csv(folder / 'l.csv', rows)}", *flags
    )


@pytest.mark.parametrize("is_anonymous", [False, True])
def test_a_patient_of_a_site_is_not_one_of_the_same_number_elsewhere(tmp_path, find, is_anonymous):
    secret = tmp_path / "secret.txt"
    secret.write_text(SECRET)
    words = ["--anonymize", secret] if is_anonymous else []
    rows = [
        {"path": f"{site.replace('/', '')}{number}.jpeg", "patient": number, "site": site}
        for site in ("a/b", "c")
        for number in (1, 2)
    ]
    output = labelled(tmp_path, rows, *(f"--anonymize={secret}" for _ in words[:1]))
    table = tmp_path / "patients.csv"
    for row, num_rows in (({"patient": 1, "site": "a/b"}, 1), ({"patient": 1}, 2)):
        write_csv(table, [row], ";")
        lines = find("--patients", table, *words, output, patients=None)
        assert f"{output}/examples.parquet: {num_rows} row" in lines[1]


def test_patients_of_dicom_files_are_found_by_the_number_in_the_files(tmp_path, find):
    files = {
        f"train/{label}/{number}.dcm": dicom_file(
            grey_pixels(number + 9 * (label == "B")), {(0x0010, 0x0020, "LO"): f"{label}{number}"}
        )
        for label in "AB"
        for number in range(3)
    }
    output = build_here(write_tree(tmp_path / "in", files), tmp_path / "out")
    assert f"{output}/examples.parquet: 1 row of 1 patient" in find(output, patients=["A1"])


def test_an_image_of_the_same_name_in_another_collection_is_not_the_patients(tmp_path, find):
    ours, other = (
        labelled(tmp_path / name, [{"path": f"{n}.jpeg", "patient": f"{name}{n}"} for n in order])
        for name, order in (("p", range(4)), ("q", (3, 2, 1, 0)))
    )
    lines = find(ours, other, patients=["p1"])
    # The same file under another name is one of the patient.
    assert [line for line in lines if "examples" in line] == [
        f"{ours}/examples.parquet: 1 row of 1 patient",
        f"{other}/examples.parquet: 1 row of 1 patient",
    ]
    assert next(r for r in rows_of(other) if r["path"] == "2.jpeg")["patient"] == "q2"


def test_a_dataset_on_a_store_is_searched_too(places, s3, find):
    for path in (places / "finished").iterdir():
        s3.client.put_object(Bucket=BUCKET, Key=f"forget/{path.name}", Body=path.read_bytes())
    found = names_in(find(f"s3://{BUCKET}/forget"), f"s3://{BUCKET}/forget")
    assert found == names_in(find(places / "finished"), places / "finished")


def test_where_nothing_is_left_it_says_what_was_searched(places, find):
    (line,) = find(places / "finished", patients=["4712", "4713"], code=1)
    assert line.startswith("nothing of 2 patients was found in ")
    assert line.endswith(f" files below {places / 'finished'}")


@pytest.mark.parametrize("name", ["a.parquet", "b.arrow", "c.json", "d.npz", "e.tar", "f.zip"])
def test_a_file_that_cannot_be_read_is_an_error_whatever_else_is_found(tmp_path, find, name):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_bytes(b"[" * 100_000)
    write_csv(tmp_path / "data" / "table.csv", [{"patient": PATIENT}])
    lines, err = find(tmp_path / "data", code=2)
    assert lines == [f"{tmp_path}/data/table.csv: 1 row of 1 patient"]
    assert err.startswith(f"error: {tmp_path}/data/{name} was not searched: ")
    assert err.count("\n") == 1


def test_links_are_followed_once_and_the_list_itself_is_not_a_place(places, tmp_path, find):
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        (tmp_path / "data" / name).symlink_to(places / "finished")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    listed = write_csv(tmp_path / "data" / "withdrawn.csv", [{"patient": PATIENT}])
    folders = tmp_path / "data", tmp_path / "data" / "one"
    lines = find("--patients", listed, *folders, patients=None)
    assert {line.removeprefix(f"{tmp_path}/data/").partition("/")[0] for line in lines} == {"one"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name\n7\n", "names no patient; expected a .csv or .parquet with a column patient"),
        ("patient\n\n", "names no patient"),
        (None, "cannot be read"),
    ],
)
def test_a_list_without_patients_is_refused(tmp_path, find, content, message):
    listed = tmp_path / "patients.csv"
    if content:
        listed.write_text(content)
    lines, err = find("--patients", listed, tmp_path, patients=None, code=2)
    assert lines == []
    assert message in err


def test_a_folder_that_is_not_there_is_wrong_usage(tmp_path, find):
    told = f"error: {tmp_path}/nowhere is not a folder\n"
    assert find(tmp_path / "nowhere", code=2) == ([], told)


def test_a_misspelled_flag_is_guessed(tmp_path, find, capsys):
    with pytest.raises(SystemExit) as end:
        find("--anonymise", tmp_path, tmp_path)
    assert end.value.code == 2
    assert "unknown argument --anonymise; did you mean --anonymize?" in capsys.readouterr().err
