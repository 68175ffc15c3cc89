cdef extern from "_crc32c.h" nogil:
    void korvet_crc32c_prepare()
    unsigned int korvet_crc32c(const unsigned char *data, size_t size)
    unsigned int korvet_crc32c_portable(const unsigned char *data, size_t size)
