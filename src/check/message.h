/* Why the last call of this library failed, on this thread: its own message, or that of libattngrad. */
#ifndef ATTNGRAD_CHECK_MESSAGE_H
#define ATTNGRAD_CHECK_MESSAGE_H

#include <attngrad.h>

#if defined(__GNUC__)
#define AGC_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define AGC_PRINTF(text, first)
#endif

/* A public function has begun: until agc_fail is called, a failure in it is one of libattngrad. */
void agc_message_begin(void);

/* Stores the message and the argument that it is about, "" for none. Returns status. */
ag_status agc_fail(ag_status status, const char *field, const char *format, ...) AGC_PRINTF(3, 4);

#endif
