"""The rules that users' arguments must keep, and the errors that say which one they break."""
