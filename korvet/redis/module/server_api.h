/* The functions of the module API of Redis (>= 7.0) and Valkey that the module calls, with types and constants.

   A server passes a function that finds an API function by name as the first member of its context. Valkey, too,
   knows the names that begin with RedisModule_. */
#ifndef KORVET_SERVER_API_H
#define KORVET_SERVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Key Key;
typedef struct Filter Filter;
typedef struct FilterContext FilterContext;
typedef struct {
    uint64_t ms, sequence;
} EntryId;
typedef int (*Command)(Context *, String **, int);
typedef void (*FilterCall)(FilterContext *);

enum { API_OK = 0, API_ERROR = 1, API_VERSION = 1 };
/* Modes of OpenKey, results of KeyType. */
enum { OPEN_READ = 1, OPEN_WRITE = 2, TYPE_EMPTY = 0, TYPE_STREAM = 7 };
/* Results of GetContextFlags: the server is a cluster's; the command came from the primary; the server loads its data. */
enum { IN_CLUSTER = 1 << 5, FROM_PRIMARY = 1 << 12, LOADING = 1 << 13 };
/* For SetModuleOptions: a key that was open for writing counts as changed only after SignalModifiedKey. */
enum { CHANGES_ARE_SIGNALLED = 1 << 1 };
/* The class of events of streams. */
enum { STREAM_EVENT = 1 << 10 };

#define SERVER_API(F) \
    F(void *, Alloc, (size_t)) \
    F(void, Free, (void *)) \
    F(void, SetModuleAttribs, (Context *, const char *, int, int)) \
    F(void, SetModuleOptions, (Context *, int)) \
    F(int, CreateCommand, (Context *, const char *, Command, const char *, int, int, int)) \
    F(Filter *, RegisterCommandFilter, (Context *, FilterCall, int)) \
    F(int, CommandFilterArgsCount, (FilterContext *)) \
    F(String *, CommandFilterArgGet, (FilterContext *, int)) \
    F(int, GetContextFlags, (Context *)) \
    F(Key *, OpenKey, (Context *, String *, int)) \
    F(void, CloseKey, (Key *)) \
    F(int, KeyType, (Key *)) \
    F(int, SignalModifiedKey, (Context *, String *)) \
    F(int, NotifyKeyspaceEvent, (Context *, int, const char *, String *)) \
    F(String *, CreateString, (Context *, const char *, size_t)) \
    F(void, FreeString, (Context *, String *)) \
    F(const char *, StringPtrLen, (const String *, size_t *)) \
    F(int, StringToLongLong, (const String *, long long *)) \
    F(int, StringToStreamID, (const String *, EntryId *)) \
    F(int, StreamAdd, (Key *, int, EntryId *, String **, long)) \
    F(int, Replicate, (Context *, const char *, const char *, ...)) \
    F(int, WrongArity, (Context *)) \
    F(int, ReplyWithError, (Context *, const char *)) \
    F(int, ReplyWithArray, (Context *, long)) \
    F(int, ReplyWithLongLong, (Context *, long long)) \
    F(int, ReplyWithStringBuffer, (Context *, const char *, size_t))

#define DECLARE(result, name, parameters) static result (*Api_##name) parameters;
SERVER_API(DECLARE)
#undef DECLARE

/* Finds every function. Returns API_ERROR if the server lacks one. */
static int bind_server_api(Context *context)
{
    int (*find)(const char *, void *) = *(int (**)(const char *, void *))context;
#define BIND(result, name, parameters) \
    if (find("RedisModule_" #name, (void *)&Api_##name) != API_OK) \
        return API_ERROR;
    SERVER_API(BIND)
#undef BIND
    return API_OK;
}

#endif
