"""The participant's session: it stays checked in and works on the server's tasks until it is stopped."""
