import runpy


def test_double():
    double = runpy.run_path("/app/double.py")["double"]
    assert [double(x) for x in (0, 2, -1)] == [0, 4, -2]
