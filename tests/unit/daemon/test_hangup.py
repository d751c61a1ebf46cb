import signal

from streammoe.daemon.signals import HangupFlag


def test_sighup_sets_the_flag_and_ends_nothing():
    before = signal.getsignal(signal.SIGHUP)
    with HangupFlag() as flag:
        assert not flag.requested
        signal.raise_signal(signal.SIGHUP)
        assert flag.requested
    assert signal.getsignal(signal.SIGHUP) == before
