"""What several API modules share: context, errors, services and parts of messages."""
