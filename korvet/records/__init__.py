"""Record batches (KIP-98 format, magic 2) to and from stream entries; compression; native entries as JSON."""
