"""What a failure of Redis, or a lack of memory, can lose: facts, forecasts and findings for operators."""
