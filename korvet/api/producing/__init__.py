"""How a Produce is answered: unpacking of batches and the response."""
