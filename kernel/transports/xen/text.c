// SPDX-License-Identifier: GPL-2.0
/*
 * text.c - reads the words of a node's value in XenStore, and believes none
 * of them before it was checked.
 *
 * Owns nothing. Each function moves the cursor behind the word that it took;
 * after a word that does not fit, the value is to be ignored. Context: any.
 */
#include <linux/ctype.h>
#include <linux/hex.h>
#include <linux/inet.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "xen.h"

/* Room for any word but a name: the longest is an IPv6 address and prefix. */
#define WORD	64

/* Takes the next word; returns its length, and 0 if there is none. */
static size_t take(const char **at, const char **word)
{
	size_t length;

	*at += strspn(*at, " ");
	*word = *at;
	length = strcspn(*at, " ");
	*at += length;
	return length;
}

/**
 * vmloop_xen_word() - take the next word
 * @at: the cursor
 * @word: where it goes, terminated
 * @size: bytes of @word
 *
 * Return: false if there is none, or if it is too long.
 */
bool vmloop_xen_word(const char **at, char *word, size_t size)
{
	const char *from;
	size_t length = take(at, &from);

	if (!length || length >= size)
		return false;
	memcpy(word, from, length);
	word[length] = '\0';
	return true;
}

/**
 * vmloop_xen_name() - take the next word as a name for people
 * @at: the cursor
 * @name: where it goes, terminated and padded with zeros
 * @size: bytes of @name; a longer name is cut
 *
 * Return: false if there is none.
 */
bool vmloop_xen_name(const char **at, char *name, size_t size)
{
	const char *from;
	size_t length = min(take(at, &from), size - 1);
	size_t i;

	memset(name, 0, size);
	for (i = 0; i < length; i++)
		name[i] = isascii(from[i]) && isprint(from[i]) ? from[i] : '?';
	return length;
}

/**
 * vmloop_xen_number() - take the next word as a decimal number
 * @at: the cursor
 * @max: the largest that it may be
 * @number: set to it
 *
 * Return: false if it is none, or too large.
 */
bool vmloop_xen_number(const char **at, u64 max, u64 *number)
{
	char word[WORD];

	return vmloop_xen_word(at, word, sizeof(word)) &&
	       !kstrtou64(word, 10, number) && *number <= max;
}

/**
 * vmloop_xen_random() - take the next word as a random number
 * @at: the cursor
 * @number: set to it
 *
 * Return: false if it is no hexadecimal number of 64 bits.
 */
bool vmloop_xen_random(const char **at, u64 *number)
{
	char word[WORD];

	return vmloop_xen_word(at, word, sizeof(word)) &&
	       !kstrtou64(word, 16, number);
}

/**
 * vmloop_xen_mac() - take the next word as a hardware address
 * @at: the cursor
 * @mac: set to it
 *
 * Return: false if it is none.
 */
bool vmloop_xen_mac(const char **at, u8 *mac)
{
	char word[WORD];

	return vmloop_xen_word(at, word, sizeof(word)) &&
	       strlen(word) == 3 * ETH_ALEN - 1 && mac_pton(word, mac);
}

/**
 * vmloop_xen_ip() - read an IP address and the length of its prefix
 * @word: as in 192.0.2.1/24
 * @address: family, prefix and ip are set
 *
 * Return: false if it is none.
 */
bool vmloop_xen_ip(const char *word, struct vmloop_msg_address *address)
{
	const char *slash = strchr(word, '/');
	u8 prefix, most;

	if (!slash || kstrtou8(slash + 1, 10, &prefix))
		return false;
	memset(address->ip, 0, sizeof(address->ip));
	if (in4_pton(word, slash - word, address->ip, -1, NULL)) {
		address->family = VMLOOP_ADDR_IPV4;
		most = 32;
	} else if (in6_pton(word, slash - word, address->ip, -1, NULL)) {
		address->family = VMLOOP_ADDR_IPV6;
		most = 128;
	} else {
		return false;
	}
	address->prefix = prefix;
	return prefix <= most;
}
