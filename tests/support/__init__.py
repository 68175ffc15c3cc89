"""What the tests share: servers as processes, deadlines, random records, raw frames, a cutting proxy."""
