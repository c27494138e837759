"""Payloads of SuperTenera, one of each source's shape."""

from __future__ import annotations

from typing import Any

PAYLOADS: dict[str, Any] = {
    "cbr": {
        "Date": "2024-01-31T11:30:00+03:00",
        "Valute": {
            "USD": {"CharCode": "USD", "Nominal": 1, "Name": "Доллар США", "Value": "89,2887", "Previous": "89,5159"},
            "KZT": {"CharCode": "KZT", "Nominal": 100, "Name": "Тенге", "Value": 19.9, "Previous": 19.8},
        },
    },
    "investing": {
        "data": [
            {
                "group": "commodities",
                "symbol": "LCO",
                "name": "Brent",
                "rowDate": "Jan 31, 2024",
                "last_open": "82,500.10",
                "last_max": "82,900.00",
                "last_min": "81,100.00",
                "last_close": "81,710.50",
                "volume": "312.45K",
                "change_percent": "-1.40%",
            }
        ]
    },
    "sgx": {
        "meta": {"category": "iron ore"},
        "data": {
            "columns": ["symbol", "name", "date", "open", "high", "low", "settlement", "volume", "open_interest"],
            "rows": [["FEFG24", "Iron Ore 62%", "20240131", 131.5, 133.0, 130.25, 132.1, 1200, 45000]],
        },
    },
    "bloomberg": {
        "securityData": [
            {
                "security": "CO1 Comdty",
                "name": "Brent",
                "sector": "Energy",
                "fieldData": [
                    {
                        "time": 1706734800000,
                        "PX_OPEN": 82.5,
                        "PX_HIGH": 83,
                        "PX_LOW": 82,
                        "PX_LAST": 81.7,
                        "PX_BID": 81.6,
                    },
                    {"time": 1706738400000, "PX_LAST": 81.9, "PX_VOLUME": 5},
                ],
            },
            {"security": "CL1 Comdty", "name": "WTI", "sector": "Energy", "fieldData": []},
        ]
    },
    "tradingview": {
        "series": [
            {
                "exchange": "NYMEX",
                "symbol": "CL1!",
                "description": "WTI",
                "t": [1706734800, 1706738400],
                "o": [77.8, 77.9],
                "h": [78.1, 78.0],
                "l": [77.5, 77.6],
                "c": [77.9, 75.85],
                "v": [1000, None],
            }
        ]
    },
    "tradingeconomics": [
        {
            "Category": "Commodity",
            "Symbol": "CL1:COM",
            "Name": "Crude Oil",
            "Date": "2024-01-31T21:30:00",
            "Open": 77.8,
            "High": 78.1,
            "Low": 75.5,
            "Close": 75.85,
            "YTD": 5.9,
        }
    ],
}
