"""The participant's session: checked in, working on the tasks that the server asks for, until it is stopped."""
