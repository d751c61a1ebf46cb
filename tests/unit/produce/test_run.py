from streammoe.commands.produce.run import Produced


def test_slow_rates_are_not_rounded_away():
    for records, seconds, rate in [(0, 1.0, "0/s"), (3, 60.0, "0.05/s"), (9, 10.0, "0.9/s"), (12_345, 10.0, "1,234/s")]:
        assert f", {rate}, " in str(Produced(records, seconds, "t"))
