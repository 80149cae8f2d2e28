"""What holds for all tests, however the suite was started."""

import signal

# A suite in the background of a script is deaf to SIGINT, and so would be all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
