/* What Cython cannot say: CRC32C by instruction, futexes, atomics, OFD locks. Linux only.
 * Everything is static: each module that includes this has its own copy. */
#ifndef REPLAYLOG_NATIVE_H
#define REPLAYLOG_NATIVE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the formats are little-endian and copied as they lie in memory"
#endif

#define RL_UNUSED __attribute__((unused))

/* ---- CRC32C (Castagnoli, reflected), continued from a former value --------------------------- */

static uint32_t rl_crc_table[8][256];
static int rl_crc_mode = -1; /* -1 not chosen, 0 table, 1 instruction */

static void rl_crc_choose(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        rl_crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++)
            rl_crc_table[t][i] = (rl_crc_table[t - 1][i] >> 8) ^ rl_crc_table[0][rl_crc_table[t - 1][i] & 255];
#if defined(__x86_64__)
    __builtin_cpu_init();
    rl_crc_mode = __builtin_cpu_supports("sse4.2") ? 1 : 0;
#elif defined(__ARM_FEATURE_CRC32)
    rl_crc_mode = 1;
#else
    rl_crc_mode = 0;
#endif
}

RL_UNUSED static uint32_t rl_crc_by_table(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        w ^= crc;
        crc = rl_crc_table[7][w & 255] ^ rl_crc_table[6][(w >> 8) & 255] ^ rl_crc_table[5][(w >> 16) & 255] ^
              rl_crc_table[4][(w >> 24) & 255] ^ rl_crc_table[3][(w >> 32) & 255] ^
              rl_crc_table[2][(w >> 40) & 255] ^ rl_crc_table[1][(w >> 48) & 255] ^ rl_crc_table[0][w >> 56];
        p += 8;
        n -= 8;
    }
    while (n--) crc = (crc >> 8) ^ rl_crc_table[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t rl_crc_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t c = crc;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        c = __builtin_ia32_crc32di(c, w);
        p += 8;
        n -= 8;
    }
    crc = (uint32_t)c;
    while (n--) crc = __builtin_ia32_crc32qi(crc, *p++);
    return crc;
}
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t rl_crc_by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        crc = __crc32cd(crc, w);
        p += 8;
        n -= 8;
    }
    while (n--) crc = __crc32cb(crc, *p++);
    return crc;
}
#else
#define rl_crc_by_instruction rl_crc_by_table
#endif

RL_UNUSED static inline uint32_t rl_crc32c(uint32_t crc, const void *data, size_t n) {
    if (__builtin_expect(rl_crc_mode < 0, 0)) rl_crc_choose();
    crc = ~crc;
    return ~(rl_crc_mode ? rl_crc_by_instruction(crc, (const uint8_t *)data, n)
                         : rl_crc_by_table(crc, (const uint8_t *)data, n));
}

/* ---- UTF-8: 1 when valid (no surrogates, no overlong forms, <= U+10FFFF) ---------------------- */

RL_UNUSED static int rl_utf8_valid(const uint8_t *p, size_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        while (end - p >= 32) {
            uint64_t w[4];
            memcpy(w, p, 32);
            if ((w[0] | w[1] | w[2] | w[3]) & 0x8080808080808080ull) break;
            p += 32;
        }
        while (end - p >= 8) {
            uint64_t w;
            memcpy(&w, p, 8);
            if (w & 0x8080808080808080ull) break;
            p += 8;
        }
        if (p >= end) break;
        uint8_t a = *p;
        if (a < 0x80) { p++; continue; }
        if (a < 0xc2 || a > 0xf4) return 0;
        size_t need = a < 0xe0 ? 1 : a < 0xf0 ? 2 : 3;
        if ((size_t)(end - p) <= need) return 0;
        uint8_t b = p[1];
        if ((b & 0xc0) != 0x80) return 0;
        if (a == 0xe0 && b < 0xa0) return 0;
        if (a == 0xed && b > 0x9f) return 0;
        if (a == 0xf0 && b < 0x90) return 0;
        if (a == 0xf4 && b > 0x8f) return 0;
        for (size_t i = 2; i <= need; i++)
            if ((p[i] & 0xc0) != 0x80) return 0;
        p += need + 1;
    }
    return 1;
}

/* ---- atomics and futexes ---------------------------------------------------------------------- */

#define rl_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define rl_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define rl_add(p, v) __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)
#define rl_or(p, v) __atomic_or_fetch((p), (v), __ATOMIC_SEQ_CST)
#define rl_and(p, v) __atomic_and_fetch((p), (v), __ATOMIC_SEQ_CST)

/* 0 woken or changed, ETIMEDOUT, EINTR. timeout_ns < 0 waits for ever. */
RL_UNUSED static int rl_futex_wait(uint32_t *word, uint32_t seen, int64_t timeout_ns) {
    struct timespec ts, *t = NULL;
    if (timeout_ns >= 0) {
        ts.tv_sec = timeout_ns / 1000000000;
        ts.tv_nsec = timeout_ns % 1000000000;
        t = &ts;
    }
    if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, t, NULL, 0) == 0) return 0;
    return errno == EAGAIN ? 0 : errno;
}

RL_UNUSED static void rl_futex_wake(uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

RL_UNUSED static int64_t rl_monotonic_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* The same to the kernel's tick (1-4 ms), for a quarter of the price. */
RL_UNUSED static int64_t rl_coarse_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- files ------------------------------------------------------------------------------------- */

/* All of it or an errno. A short write of zero bytes counts as a full disk. */
RL_UNUSED static int rl_pwrite_all(int fd, const void *data, size_t n, int64_t at) {
    const uint8_t *p = (const uint8_t *)data;
    while (n) {
        ssize_t k = pwrite(fd, p, n, at);
        if (k < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        if (k == 0) return ENOSPC;
        p += k;
        n -= (size_t)k;
        at += k;
    }
    return 0;
}

RL_UNUSED static int rl_fdatasync(int fd) {
    while (fdatasync(fd))
        if (errno != EINTR) return errno;
    return 0;
}

/* A file of n zero bytes, flushed: later writes into it change no metadata. -1 and errno. */
RL_UNUSED static int rl_make_extent(const char *path, int64_t n, int mode) {
    static const uint8_t zeros[1 << 16];
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, mode), err = 0;
    if (fd < 0) return -1;
    for (int64_t at = 0; at < n && !err; at += sizeof zeros)
        err = rl_pwrite_all(fd, zeros, n - at < (int64_t)sizeof zeros ? (size_t)(n - at) : sizeof zeros, at);
    if (!err && fsync(fd)) err = errno;
    if (err) {
        close(fd);
        unlink(path);
        errno = err;
        return -1;
    }
    return fd;
}

/* The file system's magic number, 0 when it cannot be told. */
RL_UNUSED static int64_t rl_fs_type(const char *path) {
    struct statfs s;
    return statfs(path, &s) ? 0 : (int64_t)(uint32_t)s.f_type;
}

/* A lock of one byte, owned by the open file. */
RL_UNUSED static struct flock rl_byte(short type, int64_t at) {
    struct flock l;
    memset(&l, 0, sizeof l);
    l.l_type = type;
    l.l_whence = SEEK_SET;
    l.l_start = at;
    l.l_len = 1;
    return l;
}

/* Try to take it exclusively. 0 taken, else errno (EAGAIN: another open file has it). */
RL_UNUSED static int rl_ofd_lock(int fd, int64_t at) {
    struct flock l = rl_byte(F_WRLCK, at);
    return fcntl(fd, F_OFD_SETLK, &l) ? errno : 0;
}

/* Give the byte back, also on behalf of forked children that share the open file. */
RL_UNUSED static void rl_ofd_unlock(int fd, int64_t at) {
    struct flock l = rl_byte(F_UNLCK, at);
    fcntl(fd, F_OFD_SETLK, &l);
}

/* 1 when another open file holds a lock on the byte, 0 when free, -1 on error. */
RL_UNUSED static int rl_ofd_held(int fd, int64_t at) {
    struct flock l = rl_byte(F_WRLCK, at);
    if (fcntl(fd, F_OFD_GETLK, &l)) return -1;
    return l.l_type != F_UNLCK;
}

#endif
