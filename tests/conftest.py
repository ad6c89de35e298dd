"""What every test stands on."""

import signal

# A script's background job ignores Ctrl-C, and so would everything that these tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
