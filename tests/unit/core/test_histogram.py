from tandemmq.core.histogram import Exemplar, Histogram


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 3.0):
        histogram.observe(value)
    histogram.observe(2.0, count=3)
    reading = histogram.reading()
    assert reading.counts == (2, 4, 1)
    assert reading.total == 12.0


def test_a_bucket_keeps_its_newest_exemplar() -> None:
    histogram = Histogram((1.0,))
    histogram.note_exemplar(Exemplar(0.5, 1, 2, 1))
    histogram.note_exemplar(Exemplar(0.6, 3, 4, 2))
    assert histogram.reading().exemplars == (Exemplar(0.6, 3, 4, 2), None)


def test_the_order_of_observations_does_not_matter() -> None:
    bounds = (0.1, 0.5, 1.0, 5.0)
    values = [0.05, 0.1, 0.100_1, 0.3, 0.5, 0.7, 1.0, 1.5, 5.0, 9.0, 9.5, 0.0, -1.0]
    for shift in range(len(values)):
        histogram = Histogram(bounds)
        for value in values[shift:] + values[:shift]:
            histogram.observe(value)
        assert histogram.reading().counts == (4, 3, 2, 2, 2)
