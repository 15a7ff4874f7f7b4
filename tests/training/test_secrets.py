"""Secrets of the environment reach nothing that a run leaves."""

from small_runs import RUN, trained

SECRETS = ("HF_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "AWS_SECRET_ACCESS_KEY")


def test_the_environment_is_in_no_file_and_no_message(data, tmp_path, monkeypatch, capsys):
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cret-of-the-environment")
    trained(RUN, data, tmp_path)
    assert "s3cret" not in "".join(capsys.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not any(b"s3cret" in path.read_bytes() for path in files)
