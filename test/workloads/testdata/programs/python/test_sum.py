import pytest


@pytest.mark.parametrize("n", [1, 2])
def test_passes(n, tmp_path):
    (tmp_path / "f").write_text(str(n))
    assert (tmp_path / "f").read_text() == str(n)


def test_fails():
    assert 1 + 1 == 3
